"""A job in the list of jobs, cheap enough for hundreds of jobs a second."""

import msgspec


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
