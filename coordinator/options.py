"""Checkpoint options: Flink's names, bounds and interplay. Checked once, when a job is submitted."""

from dataclasses import dataclass

import msgspec

from coordinator.messages import CheckpointOptions, JobSpec
from state.errors import InvalidJob
from state.ids import check_job_id, check_operator_name

_YEAR_MS = 365 * 24 * 3600 * 1000


@dataclass(frozen=True)
class Bound:
    low: int
    high: int
    unit: str


BOUNDS = {
    "interval_ms": Bound(10, _YEAR_MS, "ms"),
    "min_pause_ms": Bound(0, _YEAR_MS, "ms"),
    "timeout_ms": Bound(10, _YEAR_MS, "ms"),
    "max_concurrent": Bound(1, 1_000, "checkpoints"),
    "tolerable_failures": Bound(0, 1_000_000, "failures"),
    "retained": Bound(1, 1_000, "checkpoints"),
}

MAX_PARALLELISM = 32_768


def validated(options: CheckpointOptions) -> CheckpointOptions:
    """`options` with what follows from them filled in. Raises `InvalidJob` naming the option and its bounds.

    As in Flink, a minimum pause makes checkpoints sequential: `min_pause_ms > 0` sets `max_concurrent` to 1.
    """
    for name, bound in BOUNDS.items():
        value = getattr(options, name)
        if not bound.low <= value <= bound.high:
            raise InvalidJob(
                f"checkpoint option {name} = {value} is out of bounds: use {bound.low} to {bound.high} {bound.unit}"
            )
    if options.min_pause_ms > 0:
        return msgspec.structs.replace(options, max_concurrent=1)
    return options


def effective(options: CheckpointOptions) -> dict[str, str | int]:
    """What is in force, for display."""
    return dict(msgspec.structs.asdict(validated(options)))


def validated_spec(spec: JobSpec) -> JobSpec:
    """`spec` with its names, sizes and options checked, effective values filled in. Raises `InvalidJob`."""
    check_job_id(spec.job)
    check_job_id(spec.run_id)
    if not 1 <= spec.parallelism <= spec.max_parallelism <= MAX_PARALLELISM:
        raise InvalidJob(
            f"job {spec.job}: parallelism {spec.parallelism} and max_parallelism {spec.max_parallelism} must obey "
            f"1 <= parallelism <= max_parallelism <= {MAX_PARALLELISM}"
        )
    if not spec.chains:
        raise InvalidJob(f"job {spec.job} has no operator chain: add a source and a sink")
    _check_chains(spec)
    if spec.restore not in ("latest", "none") and not (spec.restore.isascii() and spec.restore.isdigit()):
        raise InvalidJob(f"restore = {spec.restore!r} is not known: use 'latest', 'none' or a checkpoint id")
    for name in ("slot_timeout_ms", "gang_timeout_ms", "resume_timeout_ms"):
        if getattr(spec, name) < 100:
            raise InvalidJob(f"job {spec.job}: {name} = {getattr(spec, name)} is too short: use at least 100 ms")
    if spec.reconnect_grace_ms < 0:
        raise InvalidJob(f"job {spec.job}: reconnect_grace_ms = {spec.reconnect_grace_ms} must not be negative")
    return msgspec.structs.replace(spec, checkpoints=validated(spec.checkpoints))


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
