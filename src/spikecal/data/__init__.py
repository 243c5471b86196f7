"""Images and labels: named datasets, folders, arrays and the user's own functions."""
