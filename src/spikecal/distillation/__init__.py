"""Calibration images from the network itself: noise optimised until it looks to the network like training data."""
