"""Images and labels: known sets, folders, arrays and the user's own functions."""
