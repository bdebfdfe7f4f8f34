"""Jobs of a daemon: submitted by drivers, or adopted from the log when a slot connects.

A new run of a job is led beside the old run until the log fences the old run. If several daemons share a storage, a run
is taken over only when the lease is free, because the leader may be healthy.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView, complete_of
from barrier_runtime.coordinator.log.lease import Judgement, Lease, LeaseState
from barrier_runtime.coordinator.log.manifest import load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.record_builder import Predecessor
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.options import validated_spec
from barrier_runtime.coordinator.server.leases import Leases, LedElsewhere, held
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.history import History, decode_history, led_elsewhere, past_status
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.handshake import job_secret
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.ids import is_job_id
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, folders_in, get_or_none
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("coordinator.jobs")

_ENDED_KEPT = 100  # earlier runs of jobs
_JOBS_KEPT = 500  # jobs that have ended
_ELSEWHERE_SHOWN = 100
_SHUTDOWN_S = 3.0  # for the last writes of a terminated daemon


@dataclass(frozen=True)
class NotHere:
    """`fenced`: the slot must leave, not retry."""

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
        leases: Leases | None = None,
        clock: Callable[[], int] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`probe` (blocking) runs once before the first new run is led; None: done before.

        `leases`: None if no other daemon shares the storage.
        """
        self._store = store
        self._daemon_key = daemon_key
        self._leader = leader
        self._host = host
        self._probe = probe
        self._leases = leases
        self._clock = clock
        self._sleep = sleep
        self._probing = asyncio.Lock()
        self._current: dict[str, JobRunner] = {}
        self._runs: dict[tuple[str, str], JobRunner] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._adopting: dict[str, asyncio.Lock] = {}
        self._ended: dict[tuple[str, str], None] = {}  # runs in the order of their ends
        self._keeping: set[asyncio.Task[None]] = set()
        self._started = 0
        self.predecessor: Predecessor | None = None
        self.versions: Mapping[str, str] = {}  # to compare slots with; empty: unknown

    def secret(self, job: str, run_id: str) -> bytes:
        return job_secret(self._daemon_key, job, run_id)

    @property
    def store(self) -> ObjectStore:
        return self._store

    @property
    def store_url(self) -> str:
        return self._store.url

    @property
    def jobs(self) -> dict[str, JobRunner]:
        return dict(self._current)

    def job(self, name: str) -> JobRunner | None:
        """The run that was submitted or adopted last."""
        return self._current.get(name)

    def run(self, job: str, run_id: str) -> JobRunner | None:
        return self._runs.get((job, run_id))

    def know(self, runner: JobRunner) -> None:
        self._runs[(runner.spec.job, runner.spec.run_id)] = runner
        self._current[runner.spec.job] = runner

    async def submit(self, spec: JobSpec) -> JobRunner:
        """Leads this run; repetition changes nothing. Raises `LedElsewhere` if another daemon leads."""
        spec = validated_spec(spec)
        await self._proven()
        if self._leases is not None and self._live(spec.job, spec.run_id) is None:
            lease = held(await self._leases.judge(spec.job))
            if lease is not None and lease.run_id == spec.run_id:
                raise LedElsewhere(lease)
        known = self._live(spec.job, spec.run_id)
        return known if known is not None else self._start(spec, Origin.SUBMITTED)

    async def for_slot(self, job: str, run_id: str) -> JobRunner | NotHere:
        """Adopts the log's newest run if the lease is free."""
        known = self._live(job, run_id)
        if known is not None and not self._displaced(known):
            return known
        lock = self._adopting.setdefault(job, asyncio.Lock())
        async with lock:
            try:
                known = self._live(job, run_id)
                if known is None:
                    return await self._adopt(job, run_id)
                if self._leases is not None and self._displaced(known):
                    lease = held(await self._leases.judge(job))
                    if lease is not None and lease.run_id == run_id:
                        raise LedElsewhere(lease)
                return known
            except LedElsewhere as error:
                return NotHere(str(error), fenced=False)
            except (BarrierRuntimeError, OSError) as error:
                return NotHere(f"the log or the lease of job {job} can't be read: {error}", fenced=False)

    async def leader_elsewhere(self, job: str, run_id: str | None) -> Lease | None:
        """Lease of another leader. Raises `Unavailable` while a run led elsewhere has no leader."""
        if self._leases is None:
            return None
        runner = self.job(job) if run_id is None else self.run(job, run_id)
        replaced = False
        if runner is not None:
            outcome = None if runner.outcome is None else runner.outcome.outcome
            replaced = outcome == "replaced"
            if outcome is None and not self._displaced(runner):
                return None
            if run_id is not None and outcome in ("finished", "cancelled", "fenced"):
                return None
        lease = held(await self._leases.judge(job))
        if lease is not None and run_id in (None, lease.run_id):
            return lease
        if replaced:
            raise Unavailable(f"job {job} was led by another daemon and is led by none now: ask again in a moment")
        return None

    async def past(self, job: str, run_id: str | None) -> JobStatus | None:
        view, history = await self._stored(job, run_id or "")
        return past_status(view, history, run_id)

    async def stored(self, lease: Lease) -> JobStatus | None:
        view, history = await self._stored(lease.job, lease.run_id)
        return led_elsewhere(view, history, f"daemon {lease.leader} at {lease.http} leads this job")

    async def elsewhere(self) -> list[Lease]:
        """Leases of other daemons, for the store's first hundred jobs."""
        if self._leases is None:
            return []
        try:
            names = await asyncio.to_thread(folders_in, self._store, "")
        except OSError as error:
            raise Unavailable(f"the jobs in {self._store.url} can't be listed: {error}") from error
        others = [name for name in names if is_job_id(name) and name not in self._current]
        leases = [held(await self._leases.judge(name)) for name in others[:_ELSEWHERE_SHOWN]]
        return [lease for lease in leases if lease is not None]

    async def _stored(self, job: str, run_id: str) -> tuple[LogView, History | None]:
        paths = Paths(job)
        try:
            view = await asyncio.to_thread(read_log, self._store, paths, completes=1, restore=None, run_id=run_id)
            history = await asyncio.to_thread(self._history, paths)
        except OSError as error:
            raise Unavailable(f"the past of job {job} can't be read from {self._store.url}: {error}") from error
        return view, history

    async def close(self) -> None:
        """Stops leading, without messages to slots: exit ends no job."""
        for run, task in self._tasks.items():
            if self._runs[run].outcome is None:  # else the runner is writing the outcome
                task.cancel()
        tasks = [*self._tasks.values(), *self._keeping]
        if tasks:
            await asyncio.wait(tasks, timeout=_SHUTDOWN_S)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._leases is not None:
            self._leases.close()

    def _live(self, job: str, run_id: str) -> JobRunner | None:
        """None also if another daemon replaced this daemon, and leases show the leader."""
        runner = self._runs.get((job, run_id))
        if runner is None or self._leases is None or runner.outcome is None:
            return runner
        return None if runner.outcome.outcome == "replaced" else runner

    def _displaced(self, runner: JobRunner) -> bool:
        """Returns whether another daemon has taken the lease, before the log shows that."""
        alive = runner.outcome is None
        return alive and self._leases is not None and self._leases.displaced(runner.spec.job, runner.spec.run_id)

    async def _adopt(self, job: str, run_id: str) -> JobRunner | NotHere:
        found = Judgement(LeaseState.FREE) if self._leases is None else await self._leases.judge(job)
        lease = held(found)
        if lease is not None and lease.run_id == run_id:
            raise LedElsewhere(lease)
        view = await asyncio.to_thread(read_log, self._store, Paths(job), completes=1, restore=None, run_id=run_id)
        if view.head is None or view.fence is None or not isinstance(view.fence.record, Fence):
            return NotHere(f"job {job} is not known here: its driver has to submit it", fenced=False)
        fence = view.fence.record
        if fence.spec.run_id != run_id:
            earlier = {entry.record.spec.run_id for entry in view.earlier_runs if isinstance(entry.record, Fence)}
            if run_id in earlier:
                by = f"generation {fence.token} of {fence.spec.submitter}"
                return NotHere(f"job {job} was taken over by {by}", fenced=True)
            return NotHere(f"this run of job {job} is not known here (yet): its driver has to submit it", fenced=False)
        if self._leases is not None and not self._leases.may_take(job, run_id, found):
            why = found.trouble or "no lease names this run (yet): it may be starting at another daemon"
            return NotHere(f"job {job} is not taken over: {why}", fenced=False)
        await asyncio.to_thread(self._check_version, job, view)
        position = view.head.position + 1
        if self._leases is not None:
            claimed = await self._leases.claim(job, run_id, position, found)
            lease = held(claimed)
            if lease is not None:
                raise LedElsewhere(lease)
        submitted = self._live(job, run_id)
        if submitted is not None:  # two runners of a run would fence each other
            return submitted
        log.info("job %s: adopted from the log, generation %d", job, fence.token)
        return self._start(validated_spec(fence.spec), Origin.ADOPTED, position)

    def _check_version(self, job: str, view: LogView) -> None:
        """Raises `InvalidJob` if a newer release wrote the newest manifest. The leader judges damage."""
        decided = DecisionLog(job, view).restore_point
        if decided is not None:
            with contextlib.suppress(Corrupt):
                load_manifest(complete_of(decided), partial(get_or_none, self._store))

    def _history(self, paths: Paths) -> History | None:
        try:
            return decode_history(paths.history, self._store.get(paths.history))
        except ObjectNotFound:
            return None
        except (Corrupt, InvalidJob) as error:
            log.warning("job %s: %s", paths.job, error)
            return None

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

    def _start(self, spec: JobSpec, origin: Origin, claimed: int | None = None) -> JobRunner:
        """`claimed`: the log position in the claimed lease."""
        self._started += 1
        runner = JobRunner(
            spec,
            self._store,
            leader=f"{self._leader}-{self._started}",
            host=self._host,
            origin=origin,
            clock=self._clock,
            sleep=self._sleep,
            predecessor=self.predecessor,
            versions=self.versions,
        )
        key = (spec.job, spec.run_id)
        self._runs[key] = runner
        self._current[spec.job] = runner
        self._tasks[key] = asyncio.create_task(self._lead(runner, claimed))
        return runner

    async def _lead(self, runner: JobRunner, claimed: int | None) -> None:
        over = asyncio.Event()
        if self._leases is not None:
            keeping = asyncio.create_task(self._leases.keep(runner, claimed, over))
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
        try:
            await runner.run()
        finally:
            over.set()
        key = (runner.spec.job, runner.spec.run_id)
        self._ended.pop(key, None)
        self._ended[key] = None
        ended = [run for run in self._ended if self._runs[run].outcome is not None]
        newest = [run for run in ended if self._current.get(run[0]) is self._runs[run]]
        earlier = [run for run in ended if self._current.get(run[0]) is not self._runs[run]]
        for run in (*earlier[:-_ENDED_KEPT], *newest[:-_JOBS_KEPT]):
            self._forget(run)

    def _forget(self, run: tuple[str, str]) -> None:
        """The log and the history still tell how the run ended."""
        job, runner = run[0], self._runs.pop(run)
        del self._ended[run]
        self._tasks.pop(run, None)
        if self._current.get(job) is runner:
            del self._current[job]
            lock = self._adopting.get(job)
            if lock is not None and not lock.locked():
                del self._adopting[job]
