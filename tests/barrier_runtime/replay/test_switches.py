"""A job whose broadcast rows become valid at barriers: replay, verify, fsck, savepoint and fork."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import BroadcastState, Dataflow, InvalidJob, JsonlSink, ValueState, connect
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, report_of
from barrier_runtime.replay import replay, verify
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state_tables import open_checkpoint
from tests.barrier_runtime.replay.two_checkpoints import checkpoints_in
from tests.barrier_runtime.running_job import RunningJob
from tests.integration.harness import visible_files

KEYS = 6
SEEN = {"key": int, "number": int, "rules": int}


class Ruled:
    number = ValueState(int, default=0)
    rules = BroadcastState(int, int)

    def on_rules(self, row: dict[str, Any], ctx: Any) -> None:
        self.rules[row["value"]] = 1

    def on_rows(self, key: int, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.number.value += 1
        yield {"key": key, "number": self.number.value, "rules": len(self.rules)}


def ruled(out: Path, name: str = "ruled") -> Dataflow:
    flow = Dataflow(name)
    rows = flow.rate("numbers", 400, keys=KEYS, splits=2)
    rules = flow.rate("changes", 60, splits=1)
    inputs = connect(rows=rows.key_by("key"), rules=rules.broadcast("barrier"))
    inputs.process("ruled", Ruled, schema=SEEN).sink("out", JsonlSink(str(out)))
    return flow


@pytest.mark.slow
async def test_rows_meet_the_rules_again_that_they_met(tmp_path: Path) -> None:
    checkpoints, saved, flow = str(tmp_path / "checkpoints"), str(tmp_path / "saved"), ruled(tmp_path / "out")
    job = RunningJob(flow, checkpoints, parallelism=2, retained=1_000, unaligned=True)
    await job.until(lambda status: status.checkpoints.completed >= 4)
    await job.savepoint(saved)
    await job.stop()
    store = open_store(checkpoints)
    assert [each.damage for each in report_of(store, check_store(store, None, 0, 0)).jobs] == [()]
    *_, before, until = numbers = checkpoints_in(checkpoints, "ruled")
    with open_checkpoint(checkpoints, "ruled", before) as stored:
        valid = stored.count("ruled", "rules")
    assert verify(flow, after=before, until=until, checkpoints=checkpoints).same
    done = replay(flow, "ruled", 1, after=before, until=until, checkpoints=checkpoints)
    met = {row["rules"] for row in done.emitted}
    assert len(met) == 1
    assert min(met) >= valid > 0
    for again in (verify, lambda flow, **at: replay(flow, "ruled", 1, **at)):
        with pytest.raises(InvalidJob, match="one behind the other"):
            again(flow, after=numbers[0], until=until, checkpoints=checkpoints)
    fork = RunningJob(ruled(tmp_path / "forked", "fork"), checkpoints, parallelism=3, restore=saved)
    await fork.until(lambda status: status.checkpoints.completed >= 3)
    await fork.stop()
    found = [json.loads(line) for at in visible_files(tmp_path / "forked") for line in at.read_text().splitlines()]
    with open_checkpoint(saved) as stored:
        numbered = dict(tuple(row.values()) for row in stored.table("ruled", "number").read_all().to_pylist())
        valid = stored.count("ruled", "rules")
    assert {key: min(row["number"] for row in found if row["key"] == key) - 1 for key in range(KEYS)} == numbered
    assert min(row["rules"] for row in found) >= valid
