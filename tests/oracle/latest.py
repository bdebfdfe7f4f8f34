"""Running aggregates with `emit="latest"`, and their oracle: per key the number of rows and their sum."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from barrier_runtime import CollectSink, Dataflow, count, sum_
from tests.oracle.streams import SCHEMA, Row, Stream, drawn


@dataclass(frozen=True)
class Latest:
    stream: Stream
    latency_target_s: float
    kind = "latest"

    @property
    def inputs(self) -> dict[str, Stream]:
        return {"rows": self.stream}

    def flow(self) -> Dataflow:
        flow = Dataflow("oracle")
        rows = flow.from_iterator("rows", lambda part, of: [], schema=SCHEMA, splits=len(self.stream.splits))
        totals = rows.key_by("k").aggregate("totals", emit="latest", n=count(), total=sum_("v"))
        totals.sink("out", CollectSink())
        return flow

    def wrong(self, out: Mapping[str, Sequence[Row]], exact: bool) -> str:
        """Faults in the rows of the sink: a key without the result of its last row, a result that occurs twice, or a
        result that rows of the key cannot have. `exact`: each row counts exactly once."""
        found: dict[Any, dict[int, int]] = defaultdict(dict)
        for row in out["out"]:
            if exact and row["n"] in found[row["k"]]:
                return f"two results of {row['n']} rows of {row['k']}"
            found[row["k"]][row["n"]] = row["total"]
        for key, values in self._values().items():
            last = max(found[key], default=0)
            if last < len(values):
                return f"{key} has {len(values)} rows, and the last result is of {last}"
            if exact and (last, found[key][last]) != (len(values), sum(values)):
                return f"{key}: wanted {len(values), sum(values)}, got {last, found[key][last]}"
            if exact and (bad := [n for n, total in found[key].items() if not _is_sum(total, n, values)]):
                return f"{key}: no {bad[0]} rows have the sum {found[key][bad[0]]}"
        return ""

    def _values(self) -> dict[Any, list[int]]:
        values: dict[Any, list[int]] = defaultdict(list)
        for row in self.stream.rows:
            values[row["k"]].append(row["v"])
        return values


def _is_sum(total: int, n: int, values: list[int]) -> bool:
    ordered = sorted(values)
    return sum(ordered[:n]) <= total <= sum(ordered[len(ordered) - n :])


def draw_latest(rng: random.Random) -> Latest:
    """Many keys have few rows, and most rows are held when a barrier arrives: a row that is lost is missed then."""
    stream = drawn(rng, rng.choice((5, 40, 120)), rng.randint(1, 3), keys_of=(3, 12, 60))
    return Latest(stream, rng.choice((0.001, 0.03, 0.2)))
