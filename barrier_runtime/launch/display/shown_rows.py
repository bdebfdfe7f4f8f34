"""Rows for looking at: a table as text, and as HTML where a notebook shows it."""

import html
import io
from typing import Any

import pyarrow as pa


class Rows:
    """What `Stream.preview` gives. `table` has the rows; the last expression of a notebook's cell shows them."""

    def __init__(self, table: pa.Table, wanted: int) -> None:
        self.table = table
        self._wanted = wanted

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def __repr__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        # In a notebook rich would write to the cell's output instead.
        Console(file=out, width=160, force_jupyter=False, force_terminal=False).print(rich_table(self.table))
        return f"{out.getvalue()}{self._note}"

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th style="text-align:left">{html.escape(field.name)}<br>'
            f"<small>{html.escape(str(field.type))}</small></th>"
            for field in self.table.schema
        )
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{html.escape(text)}</td>' for text in _texts(row)) + "</tr>"
            for row in self.table.to_pylist()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><small>{self._note}</small>"

    @property
    def _note(self) -> str:
        fewer = "" if len(self) >= self._wanted else ": the stream has no more, or none came in time"
        return f"{len(self)} rows{fewer}"


def rich_table(table: pa.Table) -> Any:
    from rich.markup import escape
    from rich.table import Table

    shown = Table()
    for field in table.schema:
        shown.add_column(escape(f"{field.name}\n{field.type}"), overflow="fold")
    for row in table.to_pylist():
        shown.add_row(*map(escape, _texts(row)))
    return shown


def _texts(row: dict[str, Any]) -> list[str]:
    return ["" if value is None else str(value) for value in row.values()]
