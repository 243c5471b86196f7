"""Thresholds, and calibration stage by stage."""
