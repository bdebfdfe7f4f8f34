"""The jobs of one daemon: submitted by drivers, or adopted from the log when one of their slots connects.

One `JobRunner` per run. A new run of a job is led beside the old one until the log fences the old one; nothing here
decides who may write.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.handshake import job_secret
from coordinator.job import Origin
from coordinator.job_runner import JobRunner
from coordinator.log_reader import read_log
from coordinator.log_records import Fence
from coordinator.messages import JobSpec
from coordinator.options import validated_spec
from state.errors import BarrierRuntimeError, Unavailable
from state.object_store import ObjectStore
from state.paths import Paths

log = logging.getLogger("coordinator.jobs")

_ENDED_KEPT = 100


@dataclass(frozen=True)
class NotHere:
    """Why a slot's run can't be served. `fenced`: it must leave, not come again."""

    reason: str
    fenced: bool


class JobDirectory:
    def __init__(
        self,
        store: ObjectStore,
        *,
        daemon_key: bytes,
        leader: str,
        host: str,
        probe: Callable[[], None] | None = None,
    ) -> None:
        """`probe` (blocking) is run once before the first new run is led; it raises `InvalidJob` for a store that
        can't hold a decision log. None: the store was proven before."""
        self._store = store
        self._daemon_key = daemon_key
        self._leader = leader
        self._host = host
        self._probe = probe
        self._probing = asyncio.Lock()
        self._current: dict[str, JobRunner] = {}
        self._runs: dict[tuple[str, str], JobRunner] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._adopting: dict[str, asyncio.Lock] = {}
        self._started = 0

    def secret(self, job: str, run_id: str) -> bytes:
        return job_secret(self._daemon_key, job, run_id)

    @property
    def store_url(self) -> str:
        return self._store.url

    @property
    def jobs(self) -> dict[str, JobRunner]:
        return dict(self._current)

    def job(self, name: str) -> JobRunner | None:
        """The run that was submitted (or adopted) last."""
        return self._current.get(name)

    def run(self, job: str, run_id: str) -> JobRunner | None:
        return self._runs.get((job, run_id))

    async def submit(self, spec: JobSpec) -> JobRunner:
        """Lead this run. Submitting the same run again changes nothing."""
        spec = validated_spec(spec)
        await self._proven()
        known = self._runs.get((spec.job, spec.run_id))
        return known if known is not None else self._start(spec, Origin.SUBMITTED)

    async def for_slot(self, job: str, run_id: str) -> JobRunner | NotHere:
        """The runner of a slot's run; adopted from the log if it is the newest there."""
        known = self._runs.get((job, run_id))
        if known is not None:
            return known
        lock = self._adopting.setdefault(job, asyncio.Lock())
        async with lock:
            known = self._runs.get((job, run_id))
            if known is not None:
                return known
            return await self._adopt(job, run_id)

    async def close(self) -> None:
        """Stop leading, without a word to anyone: exit deletes nothing and ends no job."""
        for task in self._tasks.values():
            task.cancel()
        for task in list(self._tasks.values()):
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _adopt(self, job: str, run_id: str) -> JobRunner | NotHere:
        paths = Paths(job)
        try:
            view = await asyncio.to_thread(
                read_log, self._store, paths.log_record, completes=1, restore=None, run_id=run_id
            )
        except (BarrierRuntimeError, OSError) as error:
            return NotHere(f"the log of job {job} can't be read: {error}", fenced=False)
        if view.fence is None or not isinstance(view.fence.record, Fence):
            return NotHere(f"job {job} is not known here: its driver has to submit it", fenced=False)
        fence = view.fence.record
        if fence.spec.run_id != run_id:
            return NotHere(
                f"job {job} was taken over by generation {fence.token} of {fence.spec.submitter}", fenced=True
            )
        submitted = self._runs.get((job, run_id))
        if submitted is not None:  # meanwhile: two runners of one run would fence each other
            return submitted
        log.info("job %s: adopted from the log, generation %d", job, fence.token)
        return self._start(validated_spec(fence.spec), Origin.ADOPTED)

    async def _proven(self) -> None:
        async with self._probing:
            if self._probe is not None:
                try:
                    await asyncio.to_thread(self._probe)
                except OSError as error:
                    raise Unavailable(
                        f"the object store {self._store.url} does not answer: {error}: try again"
                    ) from error
                self._probe = None

    def _start(self, spec: JobSpec, origin: Origin) -> JobRunner:
        self._started += 1
        runner = JobRunner(spec, self._store, leader=f"{self._leader}-{self._started}", host=self._host, origin=origin)
        key = (spec.job, spec.run_id)
        self._runs[key] = runner
        self._current[spec.job] = runner
        self._tasks[key] = asyncio.create_task(self._lead(key, runner))
        return runner

    async def _lead(self, key: tuple[str, str], runner: JobRunner) -> None:
        await runner.run()
        ended = [run for run, other in self._runs.items() if other.outcome is not None]
        for run in ended[:-_ENDED_KEPT]:
            if self._current.get(run[0]) is not self._runs[run]:
                del self._runs[run]
                self._tasks.pop(run, None)
