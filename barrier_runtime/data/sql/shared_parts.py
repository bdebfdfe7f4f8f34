"""Computes common parts of several expressions once: `split_pattern(url, "/")` in three columns.

Arrow does not expose the parts of an expression, but the serialised form does: a file of one row, whose columns are
literals and options, and whose schema has the tree as metadata, in the order of a walk:

    call f … options i, end f     a call, with its arguments between, and a column of options if it has any
    literal i · field_ref name    a leaf

A part is therefore a slice of the walk, and a column replaces it. An expression that differs after reading and writing
shares nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

_Token: TypeAlias = tuple[str, str]
_METADATA = "-- schema metadata --\n"
_made: Callable[[pa.Buffer], pc.Expression] = pc.scalar(0).__reduce__()[0]


@dataclass(frozen=True)
class Shared:
    """`parts`, by the name of their column, and the expressions that use these and the other columns."""

    parts: dict[str, pc.Expression]
    expressions: list[pc.Expression]


def shared(expressions: Sequence[pc.Expression], columns: Sequence[str]) -> Shared:
    """Finds common parts. `columns`: of the rows. No parts if no part occurs twice."""
    if len(set(columns)) < len(columns):  # the names would not say which of two columns is passed on beside the parts
        return Shared({}, list(expressions))
    trees = [_Tree.of(expression) for expression in expressions]
    found: dict[str, list[tuple[int, int, int, pc.Expression]]] = {}
    for number, tree in enumerate(trees):
        if tree is None:
            continue
        for first, last in tree.calls:
            part = tree.part(first, last)
            same = found.setdefault(str(part), [])
            if not same or same[0][3].equals(part):
                same.append((number, first, last, part))
    parts: dict[str, pc.Expression] = {}
    replaced: list[list[tuple[int, int, str]]] = [[] for _ in trees]
    for places in sorted(found.values(), key=lambda each: each[0][1] - each[0][2]):  # the largest first
        free = [each for each in places if not any(first <= each[1] < last for first, last, _ in replaced[each[0]])]
        if len(free) > 1:
            name = f"shared part {len(parts)}"
            while name in columns:
                name += " "
            parts[name] = free[0][3]
            for number, first, last, _ in free:
                replaced[number].append((first, last, name))
    return Shared(
        parts,
        [
            expression if tree is None or not places else tree.without(places)
            for expression, tree, places in zip(expressions, trees, replaced, strict=True)
        ],
    )


@dataclass(frozen=True)
class _Tree:
    tokens: list[_Token]
    row: pa.RecordBatch

    @staticmethod
    def of(expression: pc.Expression) -> "_Tree | None":
        """The tree of an expression; None if unreadable."""
        try:
            (buffer,) = expression.__reduce__()[1]
            row = pa.ipc.open_file(buffer).get_batch(0)
            _, _, told = row.schema.to_string(truncate_metadata=False).partition(_METADATA)
            pairs = [line.partition(": ") for line in told.splitlines()]
            tree = _Tree([(key, value[1:-1]) for key, _, value in pairs], row)
            return tree if tree.part(0, len(pairs)).equals(expression) else None
        except (pa.ArrowException, ValueError):
            return None  # for instance a column by number, or a name with a line break

    @property
    def calls(self) -> list[tuple[int, int]]:
        """Begin and end of each call that depends on the row."""
        begun, found = list[int](), list[tuple[int, int]]()
        for at, (key, _) in enumerate(self.tokens):
            if key == "call":
                begun.append(at)
            elif key == "end":
                first = begun.pop()
                if any(key == "field_ref" for key, _ in self.tokens[first:at]):
                    found.append((first, at + 1))
        return found

    def part(self, first: int, last: int) -> pc.Expression:
        return self._made_of(self.tokens[first:last])

    def without(self, places: Sequence[tuple[int, int, str]]) -> pc.Expression:
        """The expression with columns in place of these parts."""
        tokens = list(self.tokens)
        for first, last, name in sorted(places, reverse=True):
            tokens[first:last] = [("field_ref", name)]
        return self._made_of(tokens)

    def _made_of(self, tokens: Sequence[_Token]) -> pc.Expression:
        told: Any = pa.KeyValueMetadata(tokens)  # not a dict: keys such as "call" repeat
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.row.schema.with_metadata(told)) as writer:
            writer.write_batch(self.row.replace_schema_metadata(told))
        return _made(sink.getvalue())
