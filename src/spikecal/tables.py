"""Tables: the command line draws them, Python prints them, and a notebook shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill

WIDTH = 120  # at least, before a caption is wrapped


@dataclass(frozen=True, repr=False)
class Table:
    """A table; a column whose name begins with `>` is right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str | None = None

    @property
    def names(self) -> list[str]:
        return [name.removeprefix(">") for name in self.columns]

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.names, *self.rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            set_flush = (
                cell.rjust(width) if name.startswith(">") else cell.ljust(width)
                for cell, width, name in zip(cells, widths, self.columns, strict=True)
            )
            return "  ".join(set_flush).rstrip()

        rule = "  ".join("-" * width for width in widths)
        caption = [fill(text, max(WIDTH, len(rule))) for text in (self.caption or "").splitlines()]
        parts = [self.title, line(self.names), rule, *map(line, self.rows), *caption]
        return "\n".join(part for part in parts if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """An HTML table, for notebooks."""
        sides = ["right" if name.startswith(">") else "left" for name in self.columns]

        def row(cells: Sequence[str], tag: str) -> str:
            made = (
                f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
                for cell, side in zip(cells, sides, strict=True)
            )
            return f"<tr>{''.join(made)}</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        caption = f"<p>{escape(self.caption)}</p>" if self.caption else ""
        return f"<table>{title}<thead>{row(self.names, 'th')}</thead><tbody>{body}</tbody></table>{caption}"
