"""Choose, on held-out images, what a conversion leaves open."""
