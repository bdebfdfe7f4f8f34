"""Builder of a process's log records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

import msgspec

from barrier_runtime.coordinator.log.decision_log import DecisionLog, complete_of
from barrier_runtime.coordinator.log.reader import MAX_RUNS_BACK
from barrier_runtime.coordinator.log.records import (
    BASE_FROM,
    FIRST_POSITION,
    LISTS_FROM,
    NO_RECORD,
    STOP_VERSION,
    VISIBLE_FROM,
    Complete,
    Fence,
    Finish,
    Lead,
    Stop,
    StopWish,
)
from barrier_runtime.coordinator.log.restore_choice import Lineage, RestoreFrom
from barrier_runtime.coordinator.wire.messages import JobSpec, ManifestRef
from barrier_runtime.state.errors import ProtocolViolation


@dataclass(frozen=True)
class Predecessor:
    """`ended`: as "process 71 died of SIGKILL"."""

    ended: str
    ended_ms: int


@dataclass(frozen=True)
class Identity:
    """`leader`: unique to the process. `predecessor`: None if unknown.

    `versions`: see `wire.versions`; empty: unknown."""

    leader: str
    host: str
    predecessor: Predecessor | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


class _Head(TypedDict):
    version: int
    put_id: str
    parent_sha256: str
    token: int
    writer: str
    wall_ms: int
    prior_complete: int
    stop: StopWish | msgspec.UnsetType
    base: int | msgspec.UnsetType


class RecordBuilder:
    def __init__(self, spec: JobSpec, identity: Identity, stop: Callable[[], StopWish | None] = lambda: None) -> None:
        self._spec = spec
        self._identity = identity
        self._stop = stop
        self._put_ids = 0

    def rescaled(self, spec: JobSpec) -> None:
        self._spec = spec

    def fence(
        self, log: DecisionLog, choice: RestoreFrom, reason: str, floor: int, now_ms: int, spec: JobSpec | None = None
    ) -> Fence:
        """`floor`: the highest checkpoint id ever seen. `spec`: None if unchanged."""
        head = self._head(log, log.next_position, now_ms, LISTS_FROM)
        previous = log.fence
        if choice.lineage is Lineage.SAME and previous is not None:
            lineage = previous.lineage
        elif choice.lineage is Lineage.INHERIT and choice.entry is not None:
            lineage = complete_of(choice.entry).lineage
        else:
            lineage = head["put_id"]
        earlier: tuple[int, ...]
        if previous is None:
            prior_run, earlier = NO_RECORD, ()
        elif previous.spec.run_id == self._spec.run_id:
            prior_run, earlier = previous.prior_run, previous.earlier
        else:
            prior_run, earlier = previous.token, (previous.token, *previous.earlier)
        restored = NO_RECORD if choice.entry is None else choice.entry.position
        return Fence(
            **head,
            reason=reason,
            restored_checkpoint=choice.checkpoint,
            restored_position=restored,
            lineage=lineage,
            prior_run=prior_run,
            checkpoint_floor=max(floor, log.checkpoint_floor),
            spec=spec or self._spec,
            earlier=earlier[:MAX_RUNS_BACK],
            kept=log.kept_by_fence(restored, (spec or self._spec).checkpoints.retained),
        )

    def lead(self, log: DecisionLog, now_ms: int) -> Lead:
        return Lead(**self._head(log, self._token(log), now_ms), leader=self._identity.leader)

    def stop(self, log: DecisionLog, now_ms: int) -> Stop:
        return Stop(**self._head(log, self._token(log), now_ms))

    def complete(
        self,
        log: DecisionLog,
        checkpoint: int,
        lineage: str,
        manifest: ManifestRef,
        now_ms: int,
        inline: bytes = b"",
        committed: int = 0,
    ) -> Complete:
        """`inline`: the packed manifest; empty: an object.

        `committed`: every sink has committed this checkpoint; 0: unknown, nothing is compacted.
        """
        return Complete(
            **self._head(log, self._token(log), now_ms, LISTS_FROM, log.next_base(committed)),
            checkpoint=checkpoint,
            lineage=lineage,
            manifest=manifest.key,
            sha256=manifest.sha256,
            inline=inline,
            kept=log.kept_by_complete(self._spec.checkpoints.retained),
        )

    def finish(
        self,
        log: DecisionLog,
        outcome: Literal["finished", "cancelled", "failed"],
        now_ms: int,
        *,
        reason: str = "",
        discarded: bool = False,
        visible: int = 0,
    ) -> Finish:
        """`visible`: all rows through this checkpoint are visible; 0: unknown."""
        return Finish(
            **self._head(log, self._token(log), now_ms, VISIBLE_FROM if visible else 1),
            outcome=outcome,
            reason=reason,
            discarded=discarded,
            visible=visible or msgspec.UNSET,
        )

    def _head(self, log: DecisionLog, token: int, now_ms: int, version: int = 1, base: int | None = None) -> _Head:
        """`version`: the lowest version that has the record's fields."""
        self._put_ids += 1
        stop, base = self._stop(), log.base if base is None else base
        version = version if stop is None else max(version, STOP_VERSION)
        return _Head(
            version=version if base == FIRST_POSITION else BASE_FROM,
            put_id=f"{self._identity.leader}-{self._put_ids}",
            parent_sha256=log.head_sha256,
            token=token,
            writer=f"{self._identity.host} for {self._spec.submitter}",
            wall_ms=now_ms,
            prior_complete=log.prior_complete,
            stop=stop or msgspec.UNSET,
            base=msgspec.UNSET if base == FIRST_POSITION else base,
        )

    def _token(self, log: DecisionLog) -> int:
        if log.token is None:
            raise ProtocolViolation(f"job {self._spec.job}: a record for a log without a FENCE: file a bug")
        return log.token
