"""The paper's tables: what each is made of, its cells, and the pages they end in."""
