"""Requested end of a job."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest, Savepoints, SavepointState
from barrier_runtime.coordinator.log.records import StopWish

StopMode = Literal["checkpoint", "drain", "now"]


@dataclass(frozen=True)
class StopNow:
    """No later request changes this stop."""


@dataclass(frozen=True)
class StopWithCheckpoint:
    """`checkpoint`: the first id that counts; None: not requested yet."""

    savepoint: SavepointRequest | None = None
    checkpoint: int | None = None


@dataclass(frozen=True)
class Drain:
    """End all sources and emit all windows first."""

    savepoint: SavepointRequest | None = None


GentleStop: TypeAlias = StopWithCheckpoint | Drain
Stop: TypeAlias = StopNow | GentleStop


def requested(before: Stop | None, mode: StopMode, savepoint: SavepointRequest | None) -> Stop:
    """A further request never switches between draining and stopping."""
    if mode == "now" or isinstance(before, StopNow):
        return StopNow()
    if before is None:
        return Drain(savepoint) if mode == "drain" else StopWithCheckpoint(savepoint)
    return before if savepoint is None else replace(before, savepoint=savepoint)


def record_of(stop: Stop | None, savepoints: Savepoints) -> StopWish | None:
    """Entry in log records; None without a savepoint, or if the savepoint has failed."""
    if stop is None or isinstance(stop, StopNow) or stop.savepoint is None:
        return None
    entry = savepoints.entry(stop.savepoint.id)
    if entry is None or entry.state is SavepointState.FAILED:
        return None
    done = entry.state is SavepointState.DONE
    return StopWish(
        mode="drain" if isinstance(stop, Drain) else "checkpoint",
        savepoint=stop.savepoint.id,
        url=stop.savepoint.url,
        checkpoint=(entry.covered_by or 0) if done else 0,
        bytes=entry.bytes if done else 0,
    )
