"""Every option of a run, with its default, checked when it is given; and the job's description made from them.

Times are seconds, as users write them; inside the runtime they are milliseconds.
"""

import dataclasses
import getpass
import math
import os
import shutil
import socket
import tempfile
import typing
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from barrier_runtime.graph import JobGraph
from barrier_runtime.restart_options import refuse_idle, restart_options
from barrier_runtime.slot.execution import StateSettings
from coordinator.messages import CheckpointOptions, JobSpec
from coordinator.options import (
    BOUNDS,
    MAX_CHECKPOINT_DIGITS,
    PROGRESS_TIMEOUT,
    describe_restart,
    progress_timeout_ms,
    validated,
)
from state.errors import InvalidJob
from state.ids import check_job_id
from state.urls import shown, without_credentials

_MIB = 1024 * 1024
_PATHS = ("checkpoints", "token_file")
_NEVER_SHOWN = ("checkpoints", "coordinator", "spark_conf", "token_file")  # a wrong value may hold a secret
_CHECKPOINT_TIMES = {
    "checkpoint_interval": BOUNDS["interval_ms"],
    "min_pause": BOUNDS["min_pause_ms"],
    "checkpoint_timeout": BOUNDS["timeout_ms"],
}
_RESTORE = "use 'latest', 'none' or the number of a retained checkpoint"
_PLAIN_NUMBERS = ("restart_multiplier", "restart_jitter")
_WANTED = {
    int: "give a whole number",
    float: "give a number of seconds",
    str: "give text",
    bool: "give True or False",
    dict[str, str]: "give a dict of Spark settings, text to text",
}


@dataclass(frozen=True)
class JobOptions:
    """The options of `Dataflow.run`, `start` and `run_local`. Checkpoint options have Flink's names and meaning."""

    parallelism: int = 2
    max_parallelism: int = 128
    checkpoints: str | None = None  # URL or folder of the object store; required on Spark
    checkpoint_interval: float = 1.0
    min_pause: float = 0.0
    checkpoint_timeout: float = 600.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    mode: Literal["exactly_once", "at_least_once"] = "exactly_once"
    unaligned: bool = False  # checkpoints need not wait for queued rows: these are stored with them
    aligned_timeout: float | None = 0.0  # unaligned: … once a checkpoint is this old; 0: always, None: never
    retained: int = 1
    on_cancel: Literal["retain", "delete"] = "retain"
    restore: str = "latest"
    allow_replay: bool = False
    allow_non_restored: bool = False
    slot_timeout: float = 10.0
    gang_timeout: float = 60.0
    restart: Literal["none", "fixed_delay", "exponential_delay", "failure_rate"] = "exponential_delay"
    restart_attempts: int | None = 10  # exponential_delay: in a row; fixed_delay: in all; None: without end
    restart_delay: float | None = None  # None: 0.2 for exponential_delay (whose first restart is immediate), else 1
    restart_max_delay: float = 30.0  # exponential_delay, as the next three
    restart_multiplier: float = 2.0
    restart_reset_after: float = 1.0  # running this long and completing a checkpoint forget earlier restarts
    restart_jitter: float = 0.0
    restart_failures: int = 1  # failure_rate: so many are allowed within restart_interval
    restart_interval: float = 60.0
    progress_timeout: float | None = None  # None: 60, or 10 checkpoint intervals if that is longer
    state_backend: Literal["rocksdb", "memory"] = "rocksdb"
    state_memory_mb: int = 256
    state_cache_mb: int = 64
    master: str = "local[*]"
    spark: Any = None  # a SparkSession of the user's
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)  # may hold credentials of Hadoop's
    coordinator: str | None = None  # "http://host:port" of a daemon, several with commas (or as a list) when they stand
    # by for each other; default: a child process of the driver
    coordinator_host: str = "127.0.0.1"  # address of this host at which slots on other hosts reach the child process
    token_file: str | None = None  # the daemon's bearer token
    coordinator_lease: float = 600.0  # a slot leaves when the coordinator is silent for this long
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def from_keywords(cls, keywords: dict[str, object]) -> "JobOptions":
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(keywords) - known)
        if unknown:
            raise InvalidJob(f"unknown option {', '.join(unknown)}: the options are {', '.join(sorted(known))}")
        options = cls(**{name: _typed(name, value) for name, value in keywords.items()})
        options.check()
        refuse_idle(options, set(keywords))
        if "aligned_timeout" in keywords and not options.unaligned:
            raise InvalidJob(
                f"aligned_timeout={options.aligned_timeout!r} has no meaning without unaligned=True: give both, or "
                "leave it out"
            )
        return options

    def check(self) -> None:
        """Raise `InvalidJob` for the first value that cannot be right."""
        if not 1 <= self.parallelism <= 1024:
            raise InvalidJob(f"parallelism={self.parallelism}: give a whole number from 1 to 1024")
        if not self.parallelism <= self.max_parallelism <= 32_768:
            raise InvalidJob(
                f"max_parallelism={self.max_parallelism}: give a whole number from parallelism "
                f"({self.parallelism}) to 32768; it is fixed for the life of the job"
            )
        for name in ("slot_timeout", "gang_timeout", "coordinator_lease"):
            if not 0.1 <= getattr(self, name) <= 86_400:
                raise InvalidJob(f"{name}={getattr(self, name)}: give seconds from 0.1 to 86400")
        for name, bound in _CHECKPOINT_TIMES.items():
            if not bound.low <= getattr(self, name) * 1000 <= bound.high:
                raise InvalidJob(
                    f"{name}={getattr(self, name)}: give seconds from {bound.low / 1000:g} to {bound.high / 1000:.0f}"
                )
        for name in ("state_memory_mb", "state_cache_mb"):
            if not 1 <= getattr(self, name) <= 1_048_576:
                raise InvalidJob(f"{name}={getattr(self, name)}: give MiB from 1 to 1048576")
        timeout, bound = self.aligned_timeout, BOUNDS["aligned_timeout_ms"]
        if timeout is not None and not 0 <= timeout * 1000 <= bound.high:
            raise InvalidJob(f"aligned_timeout={timeout:g}: give seconds from 0 to {bound.high / 1000:.0f}, or None")
        if self.restore not in ("latest", "none") and not (self.restore.isascii() and self.restore.isdigit()):
            raise InvalidJob(f"restore={self.restore!r}: {_RESTORE}")
        if len(self.restore) > MAX_CHECKPOINT_DIGITS:
            raise InvalidJob(f"restore has {len(self.restore)} characters: {_RESTORE}")
        check_job_id(self.run_id, "run_id")
        for name in ("checkpoints", "coordinator"):
            for url in (getattr(self, name) or "").split(","):
                without_credentials(url.strip(), name)
        if self.coordinator is not None and self.token_file is None:
            raise InvalidJob("coordinator= needs token_file=, the file with the daemon's bearer token")
        self.checkpoint_options()
        restart_options(self)
        self.progress_timeout_ms()

    def progress_timeout_ms(self) -> int:
        checkpoints = self.checkpoint_options()
        given = self.progress_timeout
        if given is None:
            return progress_timeout_ms(0, checkpoints)
        bound = PROGRESS_TIMEOUT
        if not bound.low <= given * 1000 <= bound.high:
            raise InvalidJob(
                f"progress_timeout={given:g}: give seconds from {bound.low / 1000:g} to {bound.high / 1000:.0f}"
            )
        if given * 1000 <= checkpoints.interval_ms:
            raise InvalidJob(
                f"progress_timeout={given:g}: give more than the time between two checkpoints, "
                f"{checkpoints.interval_ms / 1000:g} s, or every job would seem to stand still"
            )
        return progress_timeout_ms(round(given * 1000), checkpoints)

    def checkpoint_options(self) -> CheckpointOptions:
        return validated(
            CheckpointOptions(
                interval_ms=round(self.checkpoint_interval * 1000),
                min_pause_ms=round(self.min_pause * 1000),
                timeout_ms=round(self.checkpoint_timeout * 1000),
                max_concurrent=self.max_concurrent,
                tolerable_failures=self.tolerable_failures,
                mode=self.mode,
                unaligned=self.unaligned,
                aligned_timeout_ms=None if self.aligned_timeout is None else round(self.aligned_timeout * 1000),
                retained=self.retained,
                on_cancel=self.on_cancel,
            )
        )

    def effective(self) -> dict[str, str]:
        """What is in force, for people: each option with its unit, where one option changes another as it is then."""
        checkpoints = self.checkpoint_options()
        return {
            "mode": checkpoints.mode,
            "parallelism": str(self.parallelism),
            "max_parallelism": f"{self.max_parallelism} key groups",
            "checkpoints": shown(self.checkpoints or "") or "a folder that lives as long as the run (local runs only)",
            "checkpoint_interval": f"{checkpoints.interval_ms / 1000:g} s",
            "min_pause": f"{checkpoints.min_pause_ms / 1000:g} s",
            "checkpoint_timeout": f"{checkpoints.timeout_ms / 1000:g} s",
            "max_concurrent": str(checkpoints.max_concurrent),
            "tolerable_failures": str(checkpoints.tolerable_failures),
            "unaligned": _describe_unaligned(checkpoints),
            "retained": f"{checkpoints.retained} checkpoints",
            "on_cancel": f"{checkpoints.on_cancel} checkpoints",
            "restore": self.restore,
            "restart": describe_restart(restart_options(self)),
            "progress_timeout": f"{self.progress_timeout_ms() / 1000:g} s",
            "slot_timeout": f"{self.slot_timeout:g} s",
            "gang_timeout": f"{self.gang_timeout:g} s",
            "state_backend": f"{self.state_backend}, {self.state_memory_mb} MiB, cache {self.state_cache_mb} MiB",
        }

    @property
    def state(self) -> StateSettings:
        return StateSettings(self.state_backend, self.state_memory_mb * _MIB, self.state_cache_mb * _MIB)


def _describe_unaligned(checkpoints: CheckpointOptions) -> str:
    if not checkpoints.unaligned:
        return "off: barriers wait behind the rows before them"
    if checkpoints.aligned_timeout_ms is None:
        return "on, after an endless time"
    return f"on, after {checkpoints.aligned_timeout_ms / 1000:g} s"


def _typed(name: str, value: object) -> Any:
    """`value` as the option's type; paths become text and checkpoint numbers may be numbers."""
    if name in _PATHS and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name == "restore" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if name == "coordinator" and isinstance(value, list | tuple) and all(isinstance(url, str) for url in value):
        value = ",".join(value)
    kind = _TYPES[name]
    if name == "restore" and not isinstance(value, str):
        raise InvalidJob(f"restore={value!r}: {_RESTORE}")
    harmless = name not in _NEVER_SHOWN or isinstance(value, int | float)  # a number is no secret
    said = repr(value) if harmless else f"a {type(value).__name__}"
    try:
        typed = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidJob(f"{name}={said}: {_wanted(kind, name)}") from error
    if isinstance(typed, float) and not math.isfinite(typed):
        raise InvalidJob(f"{name}={value!r}: {_wanted(kind, name)}")
    return typed


def _wanted(kind: Any, name: str) -> str:
    if name in _PLAIN_NUMBERS:
        return "give a number"
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return f"use {' or '.join(map(repr, choices))}"
    if type(None) in choices:
        return f"{_wanted(next(choice for choice in choices if choice is not type(None)), name)}, or None"
    return _WANTED[kind]


def job_spec(graph: JobGraph, options: JobOptions) -> JobSpec:
    """What is submitted to the coordinator."""
    return JobSpec(
        job=check_job_id(graph.name),
        run_id=options.run_id,
        submitter=f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}",
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        chains=graph.chain_specs(),
        checkpoints=options.checkpoint_options(),
        restore=options.restore,
        allow_replay=options.allow_replay,
        allow_non_restored=options.allow_non_restored,
        slot_timeout_ms=round(options.slot_timeout * 1000),
        gang_timeout_ms=round(options.gang_timeout * 1000),
        restart=restart_options(options),
        progress_timeout_ms=options.progress_timeout_ms(),
    )


_TYPES = typing.get_type_hints(JobOptions)


class StorageOfRun:
    """The storage URL of a local run: the one given, or a folder that lives as long as the run."""

    def __init__(self, options: JobOptions) -> None:
        self._given = options.checkpoints
        self._temporary: str | None = None

    def __enter__(self) -> str:
        if self._given is not None:
            return self._given
        self._temporary = tempfile.mkdtemp(prefix="barrier-runtime-checkpoints-")
        return self._temporary

    def __exit__(self, *exception: object) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
