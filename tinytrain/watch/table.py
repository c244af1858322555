"""A table that reads well in a terminal and in a notebook."""

import math
from collections.abc import Collection, Sequence
from html import escape

MARK = "#fdecea"


def short(value: float) -> str:
    """A number in three digits.

    >>> short(0.0), short(65504.0), short(1.5e-7), short(float("inf"))
    ('0', '65,504', '1.5e-07', '-')
    """
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


class Table:
    """Rows of text under their heads; the first column is flush left, the others right. ``marked`` rows stand out."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[str]], marked: Collection[int] = ()) -> None:
        self.heads, self.rows, self.marked = list(heads), [list(row) for row in rows], frozenset(marked)

    def __len__(self) -> int:
        return len(self.rows)

    def head(self, n: int = 10) -> "Table":
        """The first ``n`` rows."""
        return Table(self.heads, self.rows[:n], {i for i in self.marked if i < n})

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        lines = []
        for number, row in enumerate([self.heads, *self.rows], start=-1):
            first, *rest = (
                text.rjust(w) if i else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join([("> " if number in self.marked else "  ") + first, *rest]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left, right = "text-align:left", "text-align:right"
        head = "".join(f"<th style='{right if i else left}'>{escape(text)}</th>" for i, text in enumerate(self.heads))
        body = []
        for number, row in enumerate(self.rows):
            cells = (f"<td style='{right if i else left}'>{escape(cell)}</td>" for i, cell in enumerate(row))
            look = f" style='background:{MARK};color:#222'" if number in self.marked else ""
            body.append(f"<tr{look}>{''.join(cells)}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
