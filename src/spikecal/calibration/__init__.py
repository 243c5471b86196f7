"""Thresholds, and what is calibrated stage by stage."""
