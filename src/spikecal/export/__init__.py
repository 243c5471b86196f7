"""Spiking networks for other simulators and for hardware."""
