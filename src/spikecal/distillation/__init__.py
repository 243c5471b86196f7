"""Calibration images out of the network itself: optimised from noise until they look to it like its training data."""
