"""The paper's tables: their rows, their cells, and their pages."""
