"""If a server does not answer while the driver lists splits, the restart strategy decides how long the driver waits."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.connectors.memory.iterator import IteratedRows
from barrier_runtime.connectors.source import Split
from barrier_runtime.launch import prepare
from barrier_runtime.state.errors import Unavailable


def three(index: int, of: int) -> Iterator[dict[str, Any]]:
    return ({"n": n} for n in range(3))


class Away(IteratedRows):
    """Source whose server answers from the fifth request on."""

    def __init__(self) -> None:
        super().__init__("src", three, pa.schema([("n", pa.int64())]), True, 1)
        self.asked = 0

    def splits(self, parallelism: int) -> Sequence[Split]:
        self.asked += 1
        if self.asked < 5:
            raise Unavailable("source 'src': no answer from broker:9092: start the broker")
        return super().splits(parallelism)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_AGAIN_S", 0.001)


def test_a_job_begins_when_its_server_answers_and_says_once_that_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    source = Away()
    flow, sink = Dataflow("waits"), CollectSink()
    flow.source("src", source).sink("out", sink)
    with caplog.at_level(logging.WARNING, "barrier_runtime.job"):
        assert flow.run_local(restart_attempts=1).records == 3
    told = [record.getMessage() for record in caplog.records if "waits to begin" in record.getMessage()]
    assert len(told) == 1
    assert "restart='exponential_delay' sets no end" in told[0]
    assert "no answer from broker:9092: start the broker" in told[0]


@pytest.mark.parametrize(
    "options",
    [
        {"restart": "none"},
        {"restart_attempts": 0},
        {"restart": "fixed_delay", "restart_attempts": 1, "restart_delay": 0.001},
    ],
)
def test_a_strategy_that_does_not_wait_ends_the_start_with_the_servers_error(options: dict[str, Any]) -> None:
    source = Away()
    flow = Dataflow("does-not-wait")
    flow.source("src", source).sink("out", CollectSink())
    with pytest.raises(Unavailable, match="no answer from broker:9092"):
        flow.run_local(**options)
    assert source.asked < 5
