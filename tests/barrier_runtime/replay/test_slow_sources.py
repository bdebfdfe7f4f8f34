"""A replay to the end of the input waits for rows that a source still fetches, and reports splits without an end."""

import time
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.replay import replay
from barrier_runtime.tools import replaying

IDLE_S, FETCHING_S = 0.1, 1.0


class SlowSource:
    schema = pa.schema([("n", pa.int64())])
    exactly_once = True

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def splits(self, parallelism: int) -> list[Split]:
        return [Split("a")]

    def reader(self, split: Split) -> Any:
        return self._reader()


class SlowReader:
    """Has a single row, as soon as `has_come`."""

    finished = False
    asked_ns = 0

    def has_come(self) -> bool:
        raise NotImplementedError

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.asked_ns = now_ns
        if not self.has_come():
            return None
        self.finished = True
        return Polled(pa.RecordBatch.from_pydict({"n": [7]}, schema=SlowSource.schema), now_ns)

    def next_due_ns(self) -> int | None:
        return self.asked_ns + 10_000_000

    def position(self) -> bytes:
        return b"0"

    def seek(self, position: bytes) -> None: ...
    def close(self) -> None: ...


class Fetching(SlowReader):
    """As a file of a store, or a large chunk that a thread decodes."""

    fetching = False
    _bytes: Future[None] | None = None

    def fetch_by(self, fetcher: Any) -> None:
        self._fetcher = fetcher

    def has_come(self) -> bool:
        self._bytes = self._bytes or self._fetcher.submit(lambda: time.sleep(FETCHING_S))
        self.fetching = not self._bytes.done()
        return not self.fetching


class Preparing(SlowReader):
    """As a file of a store that a thread opens."""

    remote = True

    def prepare(self) -> None:
        time.sleep(FETCHING_S)

    def has_come(self) -> bool:
        return True


class Backlogged(SlowReader):
    """As a partition of Kafka before the first fetch, and with a known end."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()

    def has_come(self) -> bool:
        return time.monotonic() - self._begun_s > FETCHING_S

    def backlog(self) -> int | None:
        if time.monotonic() - self._begun_s < FETCHING_S / 2:
            return None
        return 0 if self.finished else 1


class Endless(SlowReader):
    def has_come(self) -> bool:
        return False


def flow_of(reader: Any) -> Dataflow:
    flow = Dataflow("slow")
    flow.source("rows", SlowSource(reader)).map(lambda row: row, name="same").sink("out", CollectSink())
    return flow


@pytest.fixture(autouse=True)
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.replay.running._IDLE_S", IDLE_S)


@pytest.mark.parametrize("reader", [Fetching, Preparing, Backlogged])
def test_a_replay_to_the_end_waits_for_rows_that_are_being_fetched(reader: Any) -> None:
    done = replay(flow_of(reader), "same", after=0)
    assert [each.row for each in done.rows] == [{"n": 7}]
    assert done.unread == 0


def test_splits_that_were_not_read_to_their_end_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    flow = flow_of(Endless)
    assert replay(flow, "same", after=0).unread == 1
    code = replaying.replayed(flow, "same", [], "0", None, None, row=None, stop=False, redact=[])
    assert code == 0
    assert "no rows came for a while: 1 split was not read to its end" in capsys.readouterr().out
