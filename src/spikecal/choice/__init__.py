"""What a conversion leaves open, chosen on held-out images."""
