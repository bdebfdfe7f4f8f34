"""A job with random keys that fails after the target shows rows: an undecided row in the target would stay for ever."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from barrier_runtime import Dataflow, UpsertSink
from barrier_runtime.state.errors import Unavailable

ROWS, _FIRST, _FAILING = 100, 60, 80  # rows 60 and later come when the target shows rows


def run_with_a_failure(sink: UpsertSink, shows_rows: Callable[[], bool]) -> int:
    """Writes rows with a random `id` and the `value` 0 … 99. Returns how many ids were drawn."""
    drawn, failures = itertools.count(), iter([Unavailable("it is tried again")])

    def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
        for value in range(index, ROWS, of):
            while value >= _FIRST and not shows_rows():
                time.sleep(0.01)
            yield {"value": value}

    def draw(row: dict[str, Any]) -> dict[str, Any]:
        next(drawn)
        if row["value"] == _FAILING and (failure := next(failures, None)) is not None:
            raise failure
        return {"id": random.getrandbits(62), "value": row["value"]}

    flow = Dataflow("random-keys")
    rows = flow.from_iterator("numbers", numbers, schema={"value": int})
    rows.map(draw, schema={"id": int, "value": int}).sink("out", sink)
    flow.run_local(parallelism=2, checkpoint_interval=0.05)
    return next(drawn)
