"""Tasks of networks, one object each, that convert, evaluate, train and report. The command line prints the outcome."""
