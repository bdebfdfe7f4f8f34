"""The example `bids` without servers: the flow in one process against plain Python, and the example's comparison
against wrong results.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow
from examples.bids import EVENT, results
from examples.bids_data import Answer, answer, compare, events_of, heartbeat

COUNT = 25_000  # 25 seconds of event time: two whole windows and a half


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return events_of(COUNT)


@pytest.fixture(scope="module")
def right(events: list[dict[str, Any]]) -> Answer:
    return answer(events)


@pytest.mark.slow
def test_the_flow_answers_as_plain_python_does(events: list[dict[str, Any]], right: Answer) -> None:
    def dealt(index: int, of: int) -> Iterator[dict[str, Any]]:
        yield from events[index::of]
        yield heartbeat(events)

    flow = Dataflow("bids")
    stream = flow.from_iterator("events", dealt, schema=EVENT, splits=4, event_time="at")
    sinks = {}
    for name, result in results(stream).items():
        sinks[name] = CollectSink()
        result.sink(name, sinks[name])
    flow.run_local(parallelism=2)
    verdict = compare(right, {name: sink.rows() for name, sink in sinks.items()})
    assert verdict.good, verdict.examples
    assert all(right.values())


@pytest.mark.slow
def test_the_comparison_takes_a_right_result_and_sees_every_kind_of_wrong_one(right: Answer) -> None:
    assert compare(right, right).good
    for name, rows in right.items():
        first, column, alone = rows[0], sorted(rows[0])[0], {"raises": right["raises"], name: rows}
        assert compare(alone, {**alone, name: rows[1:]}).lost == 1
        assert compare(alone, {**alone, name: [*rows, first]}).duplicated == 1
        wrong = compare(alone, {**alone, name: [{**first, column: -7}, *rows[1:]]})
        assert (wrong.lost, wrong.mismatched) == (1, 1)
