"""Any traced PyTorch network as a graph of a closed set of operations."""
