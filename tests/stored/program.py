"""The job whose stored files are kept in this folder: every kind of operator, fixed and watched files, three sinks.

Run by `barrier-runtime run`, first by the release that wrote the files and then by the present release, in the folder
named by BARRIER_STORED. While `may-commit` is missing the sinks stop committing after some checkpoints, so that a
killed job leaves committed and pending transactions.
"""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from stored_rows import SCHEMA

from barrier_runtime import CsvSink, Dataflow, JsonlSink, Tumbling, ValueState, count, max_, mean, min_, sum_

HERE = Path(os.environ["BARRIER_STORED"])
COMMITS = 4  # of each sink subtask; later commits wait
SLOW_S = float(os.environ.get("BARRIER_STORED_SLOW", "0"))  # per row of the process function: so that rows queue up


class _Held:
    """A sink whose commits wait after the first commits, until `may-commit` exists."""

    commits = 0

    def commit(self, committable: bytes) -> None:
        while self.commits >= COMMITS and not (HERE / "may-commit").exists():
            time.sleep(0.02)
        self.commits += 1
        super().commit(committable)  # type: ignore[misc]


class HeldJsonl(_Held, JsonlSink):
    pass


class HeldCsv(_Held, CsvSink):
    pass


class Quiet:
    """Per key: rows seen, and a row for each pause of five seconds or more, emitted by a timer."""

    seen = ValueState(int, default=0)
    timer = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        time.sleep(SLOW_S)
        self.seen.value = self.seen.value + 1
        if self.timer.value:
            ctx.timers.delete(self.timer.value)
        self.timer.value = ctx.timestamp + 5_000
        ctx.timers.register(self.timer.value)
        yield {"k": key, "n": row["n"], "seen": self.seen.value, "what": "row"}

    def on_timer(self, key: int, timestamp_ms: int, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"k": key, "n": timestamp_ms, "seen": self.seen.value, "what": "pause"}


flow = Dataflow(os.environ.get("BARRIER_STORED_NAME", "stored"))
_disorder = timedelta(seconds=3)
_pace = float(os.environ.get("BARRIER_STORED_PACE", "20000"))
_fixed = flow.read_jsonl(
    "fixed", str(HERE / "fixed"), schema=SCHEMA, pace=_pace, event_time="at", max_out_of_orderness=_disorder
)
_watched = flow.read_jsonl(
    "watched",
    str(HERE / "watched"),
    schema=SCHEMA,
    watch=timedelta(milliseconds=100),
    event_time="at",
    max_out_of_orderness=_disorder,
)
_keyed = _fixed.key_by("k")
_windows = _keyed.window("windows", Tumbling(timedelta(seconds=7)), event_time="at")
_windows.aggregate(n=count(), total=sum_("n"), low=min_("x"), high=max_("x"), mid=mean("n")).sink(
    "windows-out", HeldJsonl(str(HERE / "out" / "windows"))
)
_keyed.aggregate("running", rows=count(), total=sum_("n"), mid=mean("n")).sink(
    "running-out", HeldCsv(str(HERE / "out" / "running"))
)
_shape = {"k": int, "n": int, "seen": int, "what": str}
_keyed.process("quiet", Quiet, schema=_shape, event_time="at").sink("quiet-out", HeldJsonl(str(HERE / "out" / "quiet")))
_watched.deduplicate("once", "n", within=None).sink("once-out", HeldJsonl(str(HERE / "out" / "once")))
