"""Measure and plot what networks lose, need and cost."""
