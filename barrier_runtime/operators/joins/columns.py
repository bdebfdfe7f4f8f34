"""Columns of a join's results: keys, other columns of each side, nulls for a side without a row."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from barrier_runtime.operators.keyed.progress import keys_said
from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True)
class Side:
    """Input of a join: key columns, event-time column ("": rows count in order of arrival), and all columns."""

    keys: tuple[str, ...]
    event_time: str
    schema: pa.Schema


def join_keys_said(
    left: pa.Schema | None, left_keys: Sequence[str], right: pa.Schema | None, right_keys: Sequence[str]
) -> str:
    """Returns the key columns of both sides with their types, as in snapshots; "" if unknown."""
    sides = keys_said(left, left_keys), keys_said(right, right_keys)
    return f"left {sides[0]}, right {sides[1]}" if all(sides) else ""


def inner_name(added: pa.Field) -> str:
    """Returns the name of an added column in held rows."""
    return f"@{added.name}"


class JoinColumns:
    """Keys (named as on the left), `added`, other columns of the left, other columns of the right.
    Clashing names get the suffixes. Without `both` there are no right columns. Rows of both sides have the `added`
    columns under `inner_name`."""

    def __init__(
        self,
        left: Side,
        right: Side,
        suffix: tuple[str, str],
        where: str,
        both: bool = True,
        added: Sequence[pa.Field] = (),
    ) -> None:
        self._keys = (left.keys, right.keys)
        self._added = tuple(inner_name(field) for field in added)
        rest = [[field for field in side.schema if field.name not in side.keys] for side in (left, right)]
        self._rest = rest if both else [rest[0], []]
        keys = [left.schema.field(key) for key in left.keys]
        taken = {field.name for field in (*keys, *added)}
        clashing = {field.name for field in self._rest[0]} & {field.name for field in self._rest[1]}
        clashing |= taken & {field.name for field in (*self._rest[0], *self._rest[1])}
        fields = [*keys, *added]
        self._names = self._named(clashing, suffix)  # of each side: its column -> name in the result
        for one, named in zip(self._rest, self._names, strict=True):
            fields += [field.with_name(named[field.name]) for field in one]
        self.schema = pa.schema([pa.field(field.name, field.type) for field in fields])
        for key in {field.name for field in keys} & {field.name for field in added}:
            raise InvalidJob(
                f"{where}: the key column {key!r} has the name of a column that the join adds: rename it in a select() "
                "before key_by"
            )
        twice = sorted({name for name in self.schema.names if self.schema.names.count(name) > 1})
        if twice:
            firm = [field.name for field in (*keys, *added)]
            others = (("", "_right"), ("_left", "_right"), ("_1", "_2"), ("_of_left", "_of_right"))
            good = (pair for pair in others if _differ([*firm, *self._all(self._named(clashing, pair))]))
            endings = next((f"suffix={pair!r}".replace("'", '"') for pair in good), "two other endings in suffix=")
            raise InvalidJob(
                f"{where}: column {twice[0]!r} would be there twice: give {endings}, or select() it away on one side"
            )

    def _named(self, clashing: set[str], suffix: tuple[str, str]) -> list[dict[str, str]]:
        return [
            {field.name: field.name + ending if field.name in clashing else field.name for field in one}
            for one, ending in zip(self._rest, suffix, strict=True)
        ]

    @staticmethod
    def _all(names: list[dict[str, str]]) -> list[str]:
        return [name for side in names for name in side.values()]

    def left_name(self, column: str) -> str:
        """Returns the result's name of a column of the left rows."""
        return self._names[0].get(column, column)

    def right_name(self, column: str) -> str:
        """Returns the result's name of a column of the right rows; their keys are those of the left."""
        return self._names[1].get(column, column)

    def rows(self, left: pa.RecordBatch | None, right: pa.RecordBatch | None) -> pa.RecordBatch:
        """Joins rows of both sides one by one; one side may be None."""
        sides = (left, right)
        present = 0 if left is not None else 1
        some = sides[present]
        assert some is not None
        arrays = [some.column(key) for key in (*self._keys[present], *self._added)]
        for rows, fields in zip(sides, self._rest, strict=True):
            if rows is None:
                arrays += [pa.nulls(len(some), field.type) for field in fields]
            else:
                arrays += [rows.column(field.name) for field in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)
