"""Spiking networks: running, recording, saving and loading."""
