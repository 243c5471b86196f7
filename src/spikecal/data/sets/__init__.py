"""The named datasets."""
