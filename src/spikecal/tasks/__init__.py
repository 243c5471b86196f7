"""What networks do, one object for each: it converts, evaluates, trains and reports. The command line prints it."""
