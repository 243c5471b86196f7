"""One self-contained HTML page that shows what a conversion did, made from the figures of files and runs."""
