"""Checkpoint and restart options: Flink's names, bounds and interplay. Checked once, when a job is submitted."""

from dataclasses import dataclass

import msgspec

from coordinator.messages import CheckpointOptions, JobSpec, RestartOptions
from state.errors import InvalidJob
from state.ids import check_job_id, check_operator_name

_YEAR_MS = 365 * 24 * 3600 * 1000


@dataclass(frozen=True)
class Bound:
    low: float
    high: float
    unit: str


BOUNDS = {
    "interval_ms": Bound(10, _YEAR_MS, "ms"),
    "min_pause_ms": Bound(0, _YEAR_MS, "ms"),
    "timeout_ms": Bound(10, _YEAR_MS, "ms"),
    "max_concurrent": Bound(1, 1_000, "checkpoints"),
    "tolerable_failures": Bound(0, 1_000_000, "failures"),
    "retained": Bound(1, 1_000, "checkpoints"),
    "aligned_timeout_ms": Bound(0, _YEAR_MS, "ms"),
}

MAX_PARALLELISM = 32_768
MAX_CHECKPOINT_DIGITS = 18  # of a checkpoint id that is asked for; more than any job can reach
_MAX_SUBMITTER = 256


CHOICES = {
    "mode": ("exactly_once", "at_least_once"),
    "on_cancel": ("retain", "delete"),
    "strategy": ("none", "fixed_delay", "exponential_delay", "failure_rate"),
}

RESTART_BOUNDS = {
    "initial_ms": Bound(0, _YEAR_MS, "ms"),
    "multiplier": Bound(1, 1_000, "times"),
    "max_ms": Bound(0, _YEAR_MS, "ms"),
    "reset_after_ms": Bound(0, _YEAR_MS, "ms"),
    "max_attempts": Bound(0, 1_000_000, "restarts"),
    "jitter": Bound(0, 1, "of the pause"),
    "max_failures": Bound(1, 1_000_000, "failures"),
    "interval_ms": Bound(1, _YEAR_MS, "ms"),
}
RESTART_USES: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "fixed_delay": frozenset({"initial_ms", "max_attempts"}),
    "exponential_delay": frozenset({"initial_ms", "multiplier", "max_ms", "reset_after_ms", "max_attempts", "jitter"}),
    "failure_rate": frozenset({"initial_ms", "max_failures", "interval_ms"}),
}

_PROGRESS_INTERVALS = 10
PROGRESS_TIMEOUT = Bound(100, _PROGRESS_INTERVALS * _YEAR_MS, "ms")


def validated(options: CheckpointOptions) -> CheckpointOptions:
    """`options` with what follows from them filled in. Raises `InvalidJob` naming the option and its bounds.

    As in Flink, a minimum pause makes checkpoints sequential (`max_concurrent` is 1), and an interval that is shorter
    than the pause becomes as long as it. A timeout may be shorter or longer than the interval: what is under way when
    the next checkpoint is due holds it up as long as `max_concurrent` says. Unaligned checkpoints are for exactly-once
    jobs, one at a time; without them `aligned_timeout_ms` means nothing and is 0.
    """
    _check("checkpoint option", options, BOUNDS)
    if options.min_pause_ms > 0:
        interval_ms = max(options.interval_ms, options.min_pause_ms)
        options = msgspec.structs.replace(options, max_concurrent=1, interval_ms=interval_ms)
    if not options.unaligned:
        return msgspec.structs.replace(options, aligned_timeout_ms=0)
    if options.mode != "exactly_once":
        raise InvalidJob(
            f"checkpoint option unaligned does not go with mode = {options.mode!r}: in that mode barriers wait for "
            "nothing anyway; leave one of them out"
        )
    if options.max_concurrent > 1:
        raise InvalidJob(
            f"checkpoint option unaligned does not go with max_concurrent = {options.max_concurrent}: rows would be "
            "stored with several checkpoints at a time; use max_concurrent = 1"
        )
    return options


def validated_restart(options: RestartOptions) -> RestartOptions:
    """Raises `InvalidJob`. Fields that the strategy does not use are set to their defaults: one meaning, one value."""
    _check("restart option", options, RESTART_BOUNDS)
    used = RESTART_USES[options.strategy]
    values = {name: value for name, value in msgspec.structs.asdict(options).items() if name in used}
    options = RestartOptions(strategy=options.strategy, **values)
    if options.strategy == "exponential_delay" and options.initial_ms > options.max_ms:
        raise InvalidJob(
            f"restart option initial_ms = {options.initial_ms} is above max_ms = {options.max_ms}: "
            "lower the first pause or raise the longest"
        )
    return options


def progress_timeout_ms(given_ms: int, checkpoints: CheckpointOptions) -> int:
    """How long a job may go without a checkpoint before its status says so; 0 stands for the default."""
    if given_ms == 0:
        return max(60_000, _PROGRESS_INTERVALS * checkpoints.interval_ms)
    if not PROGRESS_TIMEOUT.low <= given_ms <= PROGRESS_TIMEOUT.high:
        raise InvalidJob(
            f"progress_timeout_ms = {given_ms} is out of bounds: use {PROGRESS_TIMEOUT.low} to "
            f"{PROGRESS_TIMEOUT.high} {PROGRESS_TIMEOUT.unit}"
        )
    if given_ms <= checkpoints.interval_ms:
        raise InvalidJob(
            f"progress_timeout_ms = {given_ms} is not longer than the time between two checkpoints, "
            f"{checkpoints.interval_ms} ms: every job would seem to stand still; raise it or lower the interval"
        )
    return given_ms


def _check(kind: str, options: CheckpointOptions | RestartOptions, bounds: dict[str, Bound]) -> None:
    for name, value in msgspec.structs.asdict(options).items():
        if name in CHOICES and value not in CHOICES[name]:
            raise InvalidJob(f"{kind} {name} = {value!r} is not known: use {' or '.join(CHOICES[name])}")
        bound = bounds.get(name)
        if bound is not None and value is not None and not bound.low <= value <= bound.high:
            raise InvalidJob(f"{kind} {name} = {value} is out of bounds: use {bound.low} to {bound.high} {bound.unit}")


def effective(spec: JobSpec) -> dict[str, str | int | bool | None]:
    """What is in force, for display: checkpoint options under their names, then the restarts and the watchdog."""
    shown: dict[str, str | int | bool | None] = dict(msgspec.structs.asdict(validated(spec.checkpoints)))
    shown["restart"] = describe_restart(validated_restart(spec.restart))
    shown["progress_timeout_ms"] = progress_timeout_ms(spec.progress_timeout_ms, validated(spec.checkpoints))
    return shown


def describe_restart(options: RestartOptions) -> str:
    """One line for people, only with what the strategy uses."""
    attempts = "restarts without end" if options.max_attempts is None else f"{options.max_attempts} restarts"
    if options.strategy == "fixed_delay":
        return f"fixed_delay: {attempts}, {options.initial_ms / 1000:g} s before each"
    if options.strategy == "failure_rate":
        return (
            f"failure_rate: {options.max_failures} failures within {options.interval_ms / 1000:g} s, "
            f"{options.initial_ms / 1000:g} s before each restart"
        )
    if options.strategy == "exponential_delay":
        row = "" if options.max_attempts is None else " in a row"
        return (
            f"exponential_delay: {attempts}{row}, the first at once, then after {options.initial_ms / 1000:g} s, "
            f"each {options.multiplier:g} times as long up to {options.max_ms / 1000:g} s, jitter {options.jitter:g}; "
            f"forgotten after a checkpoint and {options.reset_after_ms / 1000:g} s"
        )
    return "none: the first failure ends the job"


def validated_spec(spec: JobSpec) -> JobSpec:
    """`spec` with its names, sizes and options checked, effective values filled in. Raises `InvalidJob`."""
    check_job_id(spec.job)
    check_job_id(spec.run_id, "run id")
    if len(spec.submitter) > _MAX_SUBMITTER or not spec.submitter.isprintable():
        raise InvalidJob(
            f"job {spec.job}: the submitter goes to logs and status: use at most {_MAX_SUBMITTER} printable characters"
        )
    if not 1 <= spec.parallelism <= spec.max_parallelism <= MAX_PARALLELISM:
        raise InvalidJob(
            f"job {spec.job}: parallelism {spec.parallelism} and max_parallelism {spec.max_parallelism} must obey "
            f"1 <= parallelism <= max_parallelism <= {MAX_PARALLELISM}"
        )
    if not spec.chains:
        raise InvalidJob(f"job {spec.job} has no operator chain: add a source and a sink")
    _check_chains(spec)
    id_like = spec.restore.isascii() and spec.restore.isdigit() and len(spec.restore) <= MAX_CHECKPOINT_DIGITS
    if spec.restore not in ("latest", "none") and not id_like:
        raise InvalidJob(f"restore = {spec.restore[:40]!r} is not known: use 'latest', 'none' or a checkpoint id")
    for name in ("slot_timeout_ms", "gang_timeout_ms", "resume_timeout_ms"):
        if getattr(spec, name) < 100:
            raise InvalidJob(f"job {spec.job}: {name} = {getattr(spec, name)} is too short: use at least 100 ms")
    if spec.reconnect_grace_ms < 0:
        raise InvalidJob(f"job {spec.job}: reconnect_grace_ms = {spec.reconnect_grace_ms} must not be negative")
    checkpoints = validated(spec.checkpoints)
    return msgspec.structs.replace(
        spec,
        checkpoints=checkpoints,
        restart=validated_restart(spec.restart),
        progress_timeout_ms=progress_timeout_ms(spec.progress_timeout_ms, checkpoints),
    )


def _check_chains(spec: JobSpec) -> None:
    seen: set[str] = set()
    for expected, chain in enumerate(spec.chains):
        if chain.chain != expected:
            raise InvalidJob(
                f"job {spec.job}: chain {chain.chain} stands at place {expected}: number chains 0, 1, 2, …"
            )
        for name in sorted({*chain.stateful, *chain.sinks}):
            check_operator_name(name)
            if name in seen:
                raise InvalidJob(f"job {spec.job}: two operators are named {name!r}: give each a name of its own")
            if name not in chain.operators:
                raise InvalidJob(f"job {spec.job}: {name!r} is listed as stateful or sink but is not in its chain")
            seen.add(name)
        for name in chain.global_sinks:
            if name not in chain.sinks:
                raise InvalidJob(f"job {spec.job}: {name!r} has a global committer but is no sink of its chain")
