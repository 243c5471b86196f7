"""How each of PyTorch's operations is lowered."""
