"""From a PyTorch model to a canonical graph: traced, and every call lowered to operations of the closed set."""
