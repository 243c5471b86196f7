"""From a PyTorch model to a canonical graph: trace it, and lower every call to operations of the closed set."""
