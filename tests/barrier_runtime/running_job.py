"""A whole job in one process, changed during the run: stopped with a savepoint, rescaled, or the program replaced.

job = RunningJob(numbers_flow(target), tmp_path, parallelism=2)
await job.rows_in(target, 400)
assert (await job.rescale(3)).state == "done"
await job.stop()
check_each_once(target)
"""

import asyncio
import collections
import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from barrier_runtime import CollectSink, Dataflow, ProcessContext, ValueState, count
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.status.status import JobStatus, RescaleStatus
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.state.store.open import open_store

PATIENCE_S = 240.0
KEYS = 40


class Target(CollectSink):
    """Sink whose subtasks all write to this one object."""

    def has(self, many: int) -> bool:
        """Returns True at `many` rows or more, which for `numbers_flow` include every key. Called often, so rows
        are not converted from columns.
        """
        batches = self.batches()
        if not batches or sum(batch.num_rows for batch in batches) < many:
            return False
        if not NUMBERED.keys() <= set(batches[0].schema.names):
            return True
        return set().union(*(batch["key"].unique().to_pylist() for batch in batches)) == set(range(KEYS))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Target":
        return self


class Number:
    """Emits the number of the row within the key, from keyed state."""

    seen = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.seen.value += 1
        return [{"key": key, "n": row["n"], "own": self.seen.value}]


NUMBERED = {"key": int, "n": int, "own": int}
ROWS_PER_S = 1_000  # the cost of a test grows with the rows


def numbers_flow(target: Target, name: str = "job", read: list[int] | None = None) -> Dataflow:
    """Flow of `KEYS` keys from five splits; an aggregate (`n`) and a function (`own`) number the rows of each key.

    `read` collects every value as often as the source emits the value.
    """
    flow = Dataflow(name)
    rows = flow.rate("numbers", ROWS_PER_S, keys=KEYS, splits=5).select(["key", "value"])
    if read is not None:
        rows = rows.filter(lambda row: read.append(row["value"]) or True)
    counted = rows.key_by("key").aggregate("count", n=count())
    counted.key_by("key").process("own", Number, schema=NUMBERED).sink("out", target)
    return flow


def numbers_of(rows: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Returns the numbers of each key, in order. Asserts that both counts agree and that no key is missing."""
    found: dict[int, list[int]] = collections.defaultdict(list)
    for row in rows:
        assert row["n"] == row["own"], row
        found[row["key"]].append(row["n"])
    assert set(found) == set(range(KEYS))
    return {key: sorted(of_key) for key, of_key in found.items()}


def without_gaps(of_key: list[int]) -> bool:
    return of_key == list(range(of_key[0], of_key[0] + len(of_key)))


def check_each_once(*targets: Target) -> None:
    """Asserts that the targets together have 1, 2, 3, and so on for each key."""
    both = numbers_of([row for target in targets for row in target.rows()])
    assert all(of_key[0] == 1 and without_gaps(of_key) for of_key in both.values()), both


class RunningJob:
    """A running job. `programs`: programs that `replace` may name. `options`: options of `Dataflow.run`."""

    def __init__(
        self, flow: Dataflow, folder: Path | str, programs: Mapping[str, Dataflow] | None = None, **options: Any
    ) -> None:
        self.options = JobOptions.from_keywords({"checkpoints": str(folder), "checkpoint_interval": 0.2, **options})
        job = PreparedJob(flow.plan, self.options)
        self.programs = {name: PreparedJob(each.plan, self.options) for name, each in (programs or {}).items()}
        store = open_store(str(folder))
        job.begin_with_savepoint(store)
        self.runner = make_runner(job.spec, store)
        graphs = {name: each.graph for name, each in self.programs.items()}
        self.task = asyncio.create_task(
            run_graph(job.graph, job.spec, store, self.options, self.runner, programs=graphs)
        )

    async def until(self, found: Callable[[JobStatus], object]) -> JobStatus:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = self.runner.status()
                if found(status):
                    return status
                assert not self.task.done(), (status.outcome, status.error)
                await asyncio.sleep(0.02)

    async def rows_in(self, target: Target, many: int) -> JobStatus:
        """Waits for `many` rows or more, which for `numbers_flow` include every key: splits share no keys, and
        one split may be unread when another has that many rows.
        """

        return await self.until(lambda status: target.has(many))

    async def more_in(self, target: Target, many: int) -> JobStatus:
        return await self.rows_in(target, target.to_arrow().num_rows + many)

    async def rescale(self, parallelism: int, timeout_ms: int = 60_000) -> RescaleStatus:
        return await self._over(RescaleRequest(uuid.uuid4().hex, parallelism, timeout_ms), self.runner.rescale)

    async def replace(self, name: str, **changes: Any) -> RescaleStatus:
        request = RescaleRequest(name, 1, 60_000, self.programs[name].spec)
        return await self._over(dataclasses.replace(request, **changes), self.runner.replace)

    async def _over(self, request: RescaleRequest, ask: Callable[[RescaleRequest], object]) -> RescaleStatus:
        ask(request)
        status = await self.until(
            lambda status: any(each.id == request.id and each.ended_ms for each in status.rescales)
        )
        return next(each for each in status.rescales if each.id == request.id)

    async def savepoint(self, url: str) -> int:
        """Writes a savepoint and returns the checkpoint that the savepoint copies."""
        id = uuid.uuid4().hex
        self.runner.savepoint(SavepointRequest(id, url))
        status = await self.until(lambda status: all(each.ended_ms for each in status.savepoints))
        taken = status.savepoints[-1]
        assert (taken.id, taken.state) == (id, "done"), taken
        assert taken.checkpoint
        return taken.checkpoint

    async def stop(
        self, savepoint: str | None = None, mode: Literal["checkpoint", "drain"] = "checkpoint"
    ) -> JobStatus:
        request = None if savepoint is None else SavepointRequest(uuid.uuid4().hex, savepoint, stops=True)
        self.runner.stop(mode, request)
        return await asyncio.wait_for(self.task, PATIENCE_S)
