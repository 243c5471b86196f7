"""Methods of others that the paper compares with, and that came after it: each from its own paper."""
