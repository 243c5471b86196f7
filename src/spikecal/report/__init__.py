"""One self-contained HTML page that shows what a conversion did: numbers from files and runs in, a string out."""
