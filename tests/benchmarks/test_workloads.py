"""Each workload in our language returns the result of the workload's SQL, on the same bounded events."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import events, nexmark
from benchmarks.answers import answers, comparable, spark_session
from benchmarks.paced_source import PacedSource
from benchmarks.workloads import WIDE_BYTES, names, wide_value, workload

KEYS, ROWS, PACE = 300, 30_000, 500  # a minute of event time: several windows
AUCTION_ROWS = 15_000  # of Nexmark's queries: half a minute of event time


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    events.write_parquet(folder / "events/part.parquet", events.bounded(0, ROWS, KEYS, PACE))
    events.write_parquet(folder / "nexmark/part.parquet", nexmark.bounded(0, AUCTION_ROWS, PACE))
    return folder


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


@pytest.mark.spark
@pytest.mark.parametrize("name", names())
def test_the_answer_is_that_of_spark_sql(name: str, inputs: Path, spark: Any) -> None:
    known = workload(name)
    expected, ours = answers(known, inputs / known.input, spark)
    assert len(expected) > (0 if name == "q15" else 2)  # q15 has a row per day
    assert ours == expected


def test_of_a_running_result_the_last_row_of_a_group_is_its_answer() -> None:
    known = workload("q17")
    rows = [{"auction": 1, "day": "a", "n": n} for n in (1, 2)] + [{"auction": 2, "day": "a", "n": 1}]
    assert comparable(known, rows, ["auction", "n"]) == [(1, 2), (2, 1)]


def test_windows_that_begin_anywhere_are_compared_by_their_sums() -> None:
    rows = [{"bidder": 1, "n": 2}, {"bidder": 2, "n": 5}, {"bidder": 1, "n": 3}]
    assert comparable(workload("q12"), rows, ["bidder", "n"]) == [(1, 5), (2, 5)]


@pytest.mark.parametrize("name", names("events"))
def test_every_result_says_what_its_latency_counts_from(name: str) -> None:
    known = workload(name)
    flow, result = known.flow(lambda flow: flow.source("events", PacedSource(1_000, 10), event_time="at"))
    assert flow.name == f"bench-{name}"
    assert result.schema is not None
    assert "emitted" in result.schema.names


def test_wide_state_is_a_hundred_incompressible_bytes_with_its_key() -> None:
    values = [wide_value(key, 3) for key in range(1_000)]
    assert {len(value) for value in values} == {WIDE_BYTES - 8}
    assert values == [wide_value(key, 3) for key in range(1_000)]
    noise = b"".join(value[8:] for value in values)
    assert len(zlib.compress(noise, 9)) >= len(noise)
    assert not set(values) & {wide_value(key, 4) for key in range(1_000)}


def test_an_unknown_workload_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match="keyed-count, python-count"):
        workload("keyed")
