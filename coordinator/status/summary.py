"""Excerpts of a job's status: a row in the list of jobs, and facts that drivers act on. Cheap for wide jobs."""

import hashlib

import msgspec

from barrier_runtime.coordinator.status.status import KillRequest, LeavingSlot, ProgramWanted, StandbysWanted


class JobSummary(msgspec.Struct, frozen=True):
    job: str
    run_id: str
    phase: str
    outcome: str | None
    condition: str = ""
    condition_reason: str = ""
    parallelism: int = 0  # 0: another daemon leads
    running_since_ms: int = 0  # of the generation; 0: does not run
    ended_ms: int = 0
    rows_per_s: float | None = None  # of the last 10 s
    lag_ms: float | None = None
    latency_ms: float | None = None  # as `LatencyHour.worst_p99`
    checkpoint: int = 0  # last completed
    checkpoint_ended_ms: int = 0
    restarts: int = 0  # among the last 100 generations
    program: str = ""  # hash of the code and structure
    replaced: bool = False  # while the job ran
    at_ms: int = 0


class News(msgspec.Struct, frozen=True, array_like=True):
    leader: str
    token: int | None
    phase: str
    outcome: str | None
    condition: str
    condition_reason: str
    kill: tuple[KillRequest, ...]
    standbys: StandbysWanted | None
    program_wanted: ProgramWanted | None
    moving: bool  # a rescale is open
    leaving: tuple[LeavingSlot, ...] = ()

    @property
    def version(self) -> str:
        known = self if self.leaving else msgspec.structs.astuple(self)[:-1]  # as earlier releases
        return hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:32]
