"""`CollectSink` over several runs of one program: decided rows become visible, also if the sink is gone."""

import gc

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink


def staged(*values: int) -> bytes:
    """Returns a committable of a run whose sink the program has dropped."""
    sink = CollectSink()
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"n": list(values)}))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    del sink, transaction
    gc.collect()
    return committable


@pytest.mark.slow
def test_rows_that_were_decided_come_to_the_next_sink_once() -> None:
    committable, later, last = staged(1, 2), CollectSink(), CollectSink()
    later.commit(committable)
    later.commit(committable)
    last.commit(committable)
    assert [row["n"] for row in later.rows()] == [1, 2]
    assert last.rows() == []


def test_rows_that_were_aborted_come_to_nobody() -> None:
    committable, sink = staged(1), CollectSink()
    sink.abort(committable)
    sink.commit(committable)
    assert sink.rows() == []
