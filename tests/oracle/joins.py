"""Joins of two streams and their oracle: the same join of finished tables, by DuckDB's SQL, or `pandas.merge_asof`."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa

from barrier_runtime import CollectSink, Dataflow, Tumbling
from tests.oracle.streams import SCHEMA, Row, Stream, drawn
from tests.oracle.windows import EPOCH, MS

KINDS = ("interval", "window", "as-of", "table")
HOWS = ("inner", "left", "right", "full", "semi", "anti")
_DELETED = "v % 5 = 4"  # of a table: these changes remove their key


@dataclass(frozen=True)
class Joined:
    kind: str
    how: str
    lower_ms: int
    upper_ms: int
    size_ms: int  # of windows
    tolerance_ms: int | None
    exact: bool  # as-of: a right row of the very time counts
    left: Stream
    right: Stream

    @property
    def inputs(self) -> dict[str, Stream]:
        return {"left": self.left, "right": self.right}

    def flow(self) -> Dataflow:
        flow = Dataflow("oracle")
        left, right = (
            flow.from_iterator(
                name,
                lambda part, of: [],
                schema=SCHEMA,
                splits=len(stream.splits),
                event_time="t",
                max_out_of_orderness=stream.bound_ms * MS,
            )
            for name, stream in self.inputs.items()
        )
        by_key, common = left.key_by("k"), {"event_time": "t", "how": self.how, "late": True}
        streams: Any
        if self.kind == "interval":
            streams = by_key.join("j", right.key_by("k"), between=(self.lower_ms * MS, self.upper_ms * MS), **common)
        elif self.kind == "window":
            streams = by_key.window_join("j", right.key_by("k"), Tumbling(self.size_ms * MS), **common)
        elif self.kind == "as-of":
            tolerance = None if self.tolerance_ms is None else self.tolerance_ms * MS
            streams = by_key.asof_join("j", right.key_by("k"), tolerance=tolerance, exact=self.exact, **common)
        else:
            table = right.select({"k": "k", "t": "t", "v": "v", "gone": _DELETED}).key_by("k")
            streams = by_key.table_join("j", table, deleted="gone", **common)
        for name, stream in zip(("out", "late-left", "late-right"), streams, strict=True):
            stream.sink(name, CollectSink())
        return flow

    # ------------------------------------------------------------ expected output

    def wrong(self, out: Mapping[str, Sequence[Row]], exact: bool) -> str:
        late: list[set[int]] = []
        for name, stream in (("late-left", self.left), ("late-right", self.right)):
            watermarks, times = stream.watermarks(), {row["v"]: row["t"] for row in stream.rows}
            late.append({row["v"] for row in out[name]})
            if self.kind != "window":
                unjust = [number for number in late[-1] if times[number] > watermarks[number]]
            else:
                ends = {number: time - time % self.size_ms + self.size_ms - 1 for number, time in times.items()}
                unjust = [number for number in late[-1] if ends[number] > watermarks[number]]
            if unjust:
                return f"{name}: rows {unjust} are behind no watermark"
        in_time = [
            [row for row in each.rows if row["v"] not in gone] for each, gone in zip(self._both, late, strict=True)
        ]
        wanted = self.expected(*in_time)
        got = Counter(self._plain(row) for row in out["out"])
        if exact:
            if got == wanted:
                return ""
            return f"lacking {list((wanted - got).items())[:4]}, too many {list((got - wanted).items())[:4]}"
        lacking = [row for row in wanted if row not in got]
        return f"at least once, and lacking {lacking[:4]}" if lacking else ""

    @property
    def _both(self) -> tuple[Stream, Stream]:
        return self.left, self.right

    def _plain(self, row: Row) -> tuple[Any, ...]:
        """(left number, right number, start of the window or None)"""
        start = (row["window_start"] - EPOCH) // MS if "window_start" in row else None
        return row["v"], row.get("v_right"), start

    def expected(self, left: Sequence[Row], right: Sequence[Row]) -> Counter[tuple[Any, ...]]:
        if self.kind in ("interval", "window"):
            tables = {"l": _table(left), "r": _table(right)}
            with duckdb.connect() as connection:
                for name, table in tables.items():
                    connection.register(name, table)
                return Counter(connection.execute(self.sql).fetchall())
        return Counter(self._as_of(left, right))

    @property
    def sql(self) -> str:
        if self.kind == "interval":
            on = f"l.k = r.k AND r.t - l.t BETWEEN {self.lower_ms} AND {self.upper_ms}"
            start = left_start = "CAST(NULL AS BIGINT)"
        else:
            left_start, right_start = self._start("l"), self._start("r")
            on = f"l.k = r.k AND {left_start} = {right_start}"
            start = f"coalesce({left_start}, {right_start})"
        if self.how in ("semi", "anti"):
            negated = "NOT " if self.how == "anti" else ""
            nothing = "CAST(NULL AS BIGINT)"
            return f"SELECT l.v, {nothing}, {left_start} FROM l WHERE {negated}EXISTS (SELECT 1 FROM r WHERE {on})"
        kind = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL OUTER"}[self.how]
        return f"SELECT l.v, r.v, {start} FROM l {kind} JOIN r ON {on}"

    def _start(self, side: str) -> str:
        """Start of a row's window; in SQL a remainder has the sign of the time."""
        size = self.size_ms
        return f"({side}.t - (({side}.t % {size}) + {size}) % {size})"

    def _as_of(self, left: Sequence[Row], right: Sequence[Row]) -> list[tuple[Any, ...]]:
        frames = [
            pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in _KINDS.items()})
            for rows in (left, right)
        ]
        rights = frames[1].dropna(subset=["k"]).rename(columns={"v": "v_right"}).sort_values("t", kind="stable")
        keyed = frames[0].dropna(subset=["k"]).sort_values("t", kind="stable")
        merged = pd.merge_asof(
            keyed,
            rights,
            on="t",
            by="k",
            tolerance=self.tolerance_ms,
            allow_exact_matches=self.exact or self.kind == "table",
        )
        found = [
            (int(number), None if pd.isna(other) else int(other))
            for number, other in zip(merged["v"], merged["v_right"], strict=True)
        ]
        found += [(row["v"], None) for row in left if row["k"] is None]
        if self.kind == "table":
            found = [(number, None if other is not None and other % 5 == 4 else other) for number, other in found]
        return [(*pair, None) for pair in found if self.how == "left" or pair[1] is not None]


_KINDS = {"k": "object", "t": "int64", "v": "int64"}


def _table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def draw_joins(rng: random.Random) -> Joined:
    kind = rng.choice(("interval", "interval", "window", "as-of", "table"))
    versioned = kind in ("as-of", "table")
    far_ms = rng.choice((0, 0, 30, 500))
    lower_ms = rng.choice((-60, -10, 0, 5))
    streams = [drawn(rng, rng.choice((4, 30, 90)), rng.randint(1, 2), far_ms, distinct=versioned) for _ in "lr"]
    return Joined(
        kind,
        rng.choice(("left", "inner") if versioned else HOWS),
        lower_ms,
        lower_ms + rng.choice((0, 10, 100)),
        rng.choice((20, 70)),
        rng.choice((None, 5, 40)) if kind == "as-of" else None,
        rng.random() < 0.7,
        *streams,
    )
