"""Methods that the paper compares with, and later ones: each follows its own paper."""
