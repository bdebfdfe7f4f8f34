"""A job that repeatedly crashes during a snapshot and continues at another parallelism, up and down."""

import hashlib
import itertools
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from failing_upload import FailingUpload

from barrier_runtime import Dataflow, JsonlSink, ValueState
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from tests.integration.harness import visible_files
from tests.newest_checkpoint import newest_manifest

SPLITS, KEYS = 6, 600  # the rows of a key are in one split, so their order is defined
PARALLELISMS = (1, 2, 3, 5, 3, 1)


def numbered(crash: FailingUpload, out: Path, rate: int) -> Dataflow:
    def number(key, row, ctx):
        crash.on_row()
        ctx.state.seen.value += 1
        ctx.state.ballast.value = hashlib.shake_256(f"{key} {row['value']}".encode()).hexdigest(400)
        return [{"key": key, "value": row["value"], "number": ctx.state.seen.value}]

    flow = Dataflow("rescaled")
    rows = flow.rate("numbers", rate, keys=KEYS, splits=SPLITS)
    shape = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("number", pa.int64())])
    state = {"seen": ValueState(int, default=0), "ballast": ValueState(str, default="")}
    rows.key_by("key").process("numbered", number, schema=shape, state=state).sink("out", JsonlSink(str(out)))
    return flow


def visible(out: Path) -> list[dict[str, int]]:
    return [json.loads(line) for path in visible_files(out) for line in path.read_text().splitlines()]


def rows_in_flight(store: MemoryStore) -> int:
    """Files with rows in flight in the checkpoint that the next run restores."""
    return sum(len(snapshot.in_flight) for snapshot in newest_manifest(store, "rescaled").operators)


@pytest.mark.slow
@pytest.mark.parametrize("unaligned", [False, True])
def test_visible_rows_equal_checkpointed_rows_over_crashes_and_every_rescaling(
    tmp_path: Path, unaligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, T8: 1→2→3→5→3→1, a crash in the asynchronous phase of a snapshot each time.
    Unaligned: with rows in flight, which are spread anew, too, and with everything as bytes."""
    monkeypatch.setattr("barrier_runtime.launch.local.wire_by_default", unaligned)
    url = f"memory://{uuid.uuid4().hex}"
    store = open_store(url)
    counts, in_flight = [], 0
    rate = 5_000 if unaligned else 1_500  # so many that some are in flight at a barrier
    for parallelism in PARALLELISMS:
        options = {"parallelism": parallelism, "checkpoints": url, "checkpoint_interval": 0.05, "restart_attempts": 0}
        options |= {"unaligned": unaligned}
        with pytest.raises(JobFailed, match="/data/"):  # the input is endless; the failing upload ends the run
            numbered(FailingUpload(store, 1), tmp_path / "out", rate).run_local(**options)
        in_flight += rows_in_flight(store)
        rows = visible(tmp_path / "out")
        by_key: dict[int, list[tuple[int, int]]] = {}
        for row in rows:
            by_key.setdefault(row["key"], []).append((row["number"], row["value"]))
        for key, found in by_key.items():
            whole = [(number, key + KEYS * (number - 1)) for number in range(1, len(found) + 1)]
            assert sorted(found) == whole, f"key {key} at parallelism {parallelism}: lost, doubled or out of order"
        counts.append(len(rows))
    assert all(before <= after for before, after in itertools.pairwise(counts))
    assert (in_flight > 0) is unaligned
    gains = [after - before for before, after in zip(counts, counts[2:], strict=False)]
    assert min(gains) > 0, f"what a run has decided is committed at the latest by the next one's recovery: {counts}"
