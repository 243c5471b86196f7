"""Networks by name, with what each expects of its images, and reading of checkpoints."""
