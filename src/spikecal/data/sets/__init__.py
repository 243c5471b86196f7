"""The sets of images that have a name."""
