"""A local job with two retained checkpoints, with rows between and after them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ListState, MapState, ProcessContext, ValueState
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state_tables import open_checkpoint
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.waiting import until

USERS = ("ann", "bob", "cid")
ROWS = [{"user": USERS[n % 3], "n": n} for n in range(1_200)]


class Totals:
    total = ValueState(int)
    kept = ListState(int)
    seen = MapState(str, int)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        self.total.value = (self.total.value or 0) + row["n"]
        if row["n"] % 300 < 3:
            self.kept.append(row["n"])
        self.seen[f"{row['n'] % 2}"] = row["n"]
        yield {"user": user, "total": self.total.value}


@dataclass(frozen=True)
class TwoCheckpoints:
    flow: Dataflow
    folder: str
    before: int
    until: int
    rows_before: int
    rows_until: int


def flow_of(
    make: Any = Totals,
    sink: TwoPhaseCommitSink | None = None,
    each_ms: float = 1.0,
    may_come: Callable[[int], bool] = lambda at: True,
) -> Dataflow:
    """Emits row `at` and the next rows once `may_come(at)` holds, which is evaluated for every twentieth row."""
    import time

    def rows(index: int, of: int) -> Iterator[dict[str, Any]]:
        for at in range(0, len(ROWS), 20):
            until_covered(at)
            while not may_come(at):
                time.sleep(0.01)
            yield from ROWS[at : at + 20]
            time.sleep(each_ms * 20 / 1000)

    flow = Dataflow("replayed")
    read = flow.from_iterator("rows", rows, schema={"user": str, "n": int}, splits=1)
    kept = read.filter(lambda row: row["n"] >= 0)
    kept.key_by("user").process("totals", make, schema={"user": str, "total": int}).sink("out", sink or CollectSink())
    return flow


_PLACES: list[tuple[str, str]] = []  # folder and name of the running job


def until_covered(at: int) -> None:
    """Waits in the job's source, at a third and at two thirds of the rows, until a checkpoint covers rows of that part.

    A replay reads the source without waiting.
    """
    if _PLACES and at in (400, 800):
        until(lambda: covered(*_PLACES[-1]) > at - 400, "a checkpoint with these rows")


def covered(folder: str, job: str) -> int:
    """Rows that the newest checkpoint covers; 0 without a checkpoint."""
    try:
        return rows_at(folder, job, find_checkpoint(folder, job).manifest.checkpoint)
    except InvalidJob:
        return 0


def two_checkpoints(
    folder: str, flow: Callable[[], Dataflow] = flow_of, backend: str = "rocksdb", **options: Any
) -> TwoCheckpoints:
    made = flow()
    given = {"parallelism": 2, "checkpoint_interval": 0.2, "retained": 1000, "state_backend": backend, **options}
    _PLACES.append((folder, made.name))
    try:
        made.run_local(checkpoints=folder, **given)
    finally:
        _PLACES.pop()
    numbers = checkpoints_in(folder, made.name)
    taken = [(number, rows_at(folder, made.name, number)) for number in numbers]
    between = [each for each in taken if 0 < each[1] < len(ROWS)]
    assert len(between) >= 2, taken
    (before, rows_before), (last, rows_until) = between[0], between[-1]
    assert rows_until > rows_before
    return TwoCheckpoints(made, folder, before, last, rows_before, rows_until)


def checkpoints_in(folder: str, job: str) -> list[int]:
    newest = find_checkpoint(folder, job).manifest.checkpoint
    found = []
    for number in range(1, newest + 1):
        try:
            find_checkpoint(folder, job, number)
        except Exception:
            continue
        found.append(number)
    return found


def rows_at(folder: str, job: str, checkpoint: int) -> int:
    with open_checkpoint(folder, job, checkpoint) as stored:
        positions = stored.positions().to_pylist()
    return sum(each["rows"] for each in positions)
