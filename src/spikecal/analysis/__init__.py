"""What networks lose, need and cost, measured, and drawn."""
