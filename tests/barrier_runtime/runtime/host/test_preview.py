"""A preview of rows: bounded in rows and bytes, and gone without a trace."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Operator
from barrier_runtime.runtime.host.inspection import MOST_ROWS, Preview, place_of, rows_as_text
from barrier_runtime.runtime.operator_chain import OperatorChain


class Passes(Operator):
    def process(self, batch: Batch, emit: Any, port: int = 0) -> None:
        emit(batch)


def batch(*values: Any) -> Batch:
    return Batch(pa.record_batch({"v": pa.array(values)}), 0)


def subtask(chain: OperatorChain, source: str = "") -> Any:
    return SimpleNamespace(chain=chain, source=(source, None) if source else None)


async def test_rows_are_noted_up_to_the_count_and_nothing_is_left_behind(store: Any) -> None:

    chain = OperatorChain([("a", Passes()), ("b", Passes())], [])
    for position in (0, 1, 2):
        full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        preview = Preview(subtask(chain), position, 3, full)
        for first in range(0, 8, 2):
            chain.process(batch(first, first + 1), 0)
        assert full.done()
        assert [json.loads(each)["v"] for each in rows_as_text(preview.batches, preview.count)] == [0, 1, 2]
        preview.end()
        seen = len(preview.batches)
        chain.process(batch(9), 0)
        assert len(preview.batches) == seen == 2
        assert "process" not in vars(chain)
    many = Preview(subtask(chain), 0, 10**9, asyncio.get_running_loop().create_future())
    assert many.count == MOST_ROWS


def test_rows_of_a_step_are_those_behind_it_and_of_a_sink_those_before_it() -> None:
    chain = OperatorChain([("a", Passes()), ("out", Passes())], [])
    running = [subtask(chain, "source")]
    assert [place_of(name, running) for name in ("source", "a", "out", "none")] == [
        (running[0], 0),
        (running[0], 1),
        (running[0], 1),
        None,
    ]
