"""Stored checkpoint and restart options, and checks of submitted jobs."""

from typing import TypeAlias

import msgspec

from barrier_runtime.coordinator.option_table import CHECKPOINTS, OPTIONS, RESTARTS, Option, stored_in
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec, RestartOptions
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id, check_operator_name
from barrier_runtime.state.texts import counted

MAX_PARALLELISM = int(OPTIONS["max_parallelism"].high or 0)
MAX_CHECKPOINT_DIGITS = 18  # of a requested checkpoint; no job reaches more
_MAX_SUBMITTER = 256
_PROGRESS_INTERVALS = 10
_SHORTEST_MS = 100

Stored: TypeAlias = CheckpointOptions | RestartOptions
FIELDS: dict[type[Stored], dict[str, Option]] = {
    CheckpointOptions: stored_in(CHECKPOINTS),
    RestartOptions: stored_in(RESTARTS),
}


def validated(options: CheckpointOptions) -> CheckpointOptions:
    """Returns `options` with implied values. Raises `InvalidJob` naming the option and its bounds.

    As in Flink, a minimum pause makes checkpoints sequential, and the interval at least as long. Unaligned checkpoints
    are for exactly-once jobs, one at a time; without them `aligned_timeout_ms` is 0.
    """
    _check("checkpoint option", options)
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
    """Returns `options` with unused fields at their defaults."""
    _check("restart option", options)
    values = {
        name: value
        for name, value in msgspec.structs.asdict(options).items()
        if options.strategy in FIELDS[RestartOptions][name].strategies
    }
    options = RestartOptions(strategy=options.strategy, **values)
    if options.strategy == "exponential_delay" and options.initial_ms > options.max_ms:
        raise InvalidJob(
            f"restart option initial_ms = {options.initial_ms} is above max_ms = {options.max_ms}: "
            "lower the first pause or raise the longest"
        )
    return options


def progress_timeout_ms(given_ms: int, checkpoints: CheckpointOptions) -> int:
    """Time without a checkpoint that counts as a fault; `given_ms` 0: the default."""
    if given_ms == 0:
        return max(60_000, _PROGRESS_INTERVALS * checkpoints.interval_ms)
    low, high = _bounds(OPTIONS["progress_timeout"])
    if not low <= given_ms <= high:
        raise InvalidJob(f"progress_timeout_ms = {given_ms} is out of bounds: use {low} to {high} ms")
    if given_ms <= checkpoints.interval_ms:
        raise InvalidJob(
            f"progress_timeout_ms = {given_ms} is not longer than the time between two checkpoints, "
            f"{checkpoints.interval_ms} ms: every job would seem to stand still; raise it or lower the interval"
        )
    return given_ms


def _check(kind: str, options: Stored) -> None:
    for name, value in msgspec.structs.asdict(options).items():
        option = FIELDS[type(options)][name]
        if option.choices and value not in option.choices:
            raise InvalidJob(f"{kind} {name} = {value!r} is not known: use {' or '.join(option.choices)}")
        if option.low is None or value is None:
            continue
        low, high = _bounds(option)
        if not low <= value <= high:
            unit = "ms" if option.in_ms else option.unit
            raise InvalidJob(f"{kind} {name} = {value} is out of bounds: use {low} to {high} {unit}".rstrip())


def _bounds(option: Option) -> tuple[int, int]:
    return option.stored(option.low), option.stored(option.high)


def effective(spec: JobSpec) -> dict[str, str | float | bool | None]:
    shown: dict[str, str | float | bool | None] = dict(msgspec.structs.asdict(validated(spec.checkpoints)))
    shown["restart"] = describe_restart(validated_restart(spec.restart))
    shown["store_write_price"], shown["store_read_price"] = spec.store_write_price, spec.store_read_price
    shown["progress_timeout_ms"] = progress_timeout_ms(spec.progress_timeout_ms, validated(spec.checkpoints))
    return shown


def describe_restart(options: RestartOptions) -> str:
    attempts = "restarts without end" if options.max_attempts is None else counted(options.max_attempts, "restart")
    if options.strategy == "fixed_delay":
        return f"fixed_delay: {attempts}, {options.initial_ms / 1000:g} s before each"
    if options.strategy == "failure_rate":
        return (
            f"failure_rate: {counted(options.max_failures, 'failure')} within {options.interval_ms / 1000:g} s, "
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
    for name in ("slot_timeout_ms", "resource_wait_timeout_ms", "resume_timeout_ms", "degrade_after_ms"):
        if getattr(spec, name) < _SHORTEST_MS:
            raise InvalidJob(
                f"job {spec.job}: {name} = {getattr(spec, name)} is too short: use at least {_SHORTEST_MS} ms"
            )
    if spec.reconnect_grace_ms < 0:
        raise InvalidJob(f"job {spec.job}: reconnect_grace_ms = {spec.reconnect_grace_ms} must not be negative")
    checkpoints = validated(spec.checkpoints)
    return msgspec.structs.replace(
        spec,
        checkpoints=checkpoints,
        restart=validated_restart(spec.restart),
        progress_timeout_ms=progress_timeout_ms(spec.progress_timeout_ms, checkpoints),
    )


MAX_COMMIT_EVERY_MS = 24 * 60 * 60 * 1000


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
        for name, every_ms in chain.commit_every_ms.items():
            if name not in chain.global_sinks or not 0 <= every_ms <= MAX_COMMIT_EVERY_MS:
                raise InvalidJob(
                    f"job {spec.job}: commits of {name!r} are held back for {every_ms} ms: only those of a sink with a "
                    "global committer can be, for a day at most"
                )
        for name in chain.global_sinks:
            if name not in chain.sinks:
                raise InvalidJob(f"job {spec.job}: {name!r} has a global committer but is not a sink of its chain")
