"""Networks by name, with what each expects of its images, and the reading of checkpoints."""
