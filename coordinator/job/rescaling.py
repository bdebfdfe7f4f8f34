"""Changes of a running job's parallelism (a rescale) or program (a replace). Pure.

    LOADING ─ the driver has described the new program ─► STARTING
    STARTING ─ all new slots are registered, all slots have fetched their key groups ─► STOPPING
    STOPPING ─ checkpoint m is decided ─► COMMITTING ─ all of m is visible ─► MOVING
    MOVING ─ FENCE with the new description is appended, the new slots run ─► DONE
        └────────────────────┴──────────────────────────┴─ the job continues unchanged ─► FAILED

Events by state, and rounds of `FetchingAhead`: docs/design/rescaling-events.md.
"""

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from barrier_runtime.coordinator.status.health import some_of
from barrier_runtime.coordinator.status.status import AbsentSlot, RescaleStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.texts import counted

RETURN = "full-width-"  # prefix of ids of a job's own requests
_MOST_ROUNDS = 5


class Next(enum.Enum):
    WAIT = "wait"
    CHECKPOINT = "take a checkpoint, and tell its id to `taken`"
    STOP = "the sources may stop"


@dataclass
class FetchingAhead:
    rounds: int = 0
    checkpoint: int = 0
    is_last: bool = False

    def next(self, fetched: int, newest: int, late: bool = False) -> Next:
        """`fetched`: by all slots. `newest`: newest decided checkpoint."""
        if self.rounds == 0:
            self.rounds, self.checkpoint = 1, newest
        if fetched < self.checkpoint:
            return Next.STOP if late and self.rounds > 1 else Next.WAIT
        if self.is_last or late:
            return Next.STOP
        if fetched >= newest or self.rounds >= _MOST_ROUNDS:
            return Next.CHECKPOINT
        self.rounds, self.checkpoint = self.rounds + 1, newest
        return Next.WAIT

    def holds_others(self, newest: int) -> bool:
        return self.is_last and newest >= self.checkpoint

    def taken(self, checkpoint: int) -> None:
        self.rounds, self.checkpoint, self.is_last = self.rounds + 1, checkpoint, True


_KEPT = 50  # ended requests
_OUTDATED = 20  # fingerprints in a description


class RescaleState(enum.Enum):
    LOADING = "loading"
    STARTING = "starting"
    STOPPING = "stopping"
    COMMITTING = "committing"
    MOVING = "moving"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (RescaleState.DONE, RescaleState.FAILED)

    @property
    def pausing(self) -> bool:
        return self in (RescaleState.STOPPING, RescaleState.COMMITTING)


@dataclass(frozen=True)
class RescaleRequest:
    id: str
    parallelism: int  # a replace keeps the job's
    timeout_ms: int = 60_000  # for each of: new slots, last checkpoint, commits, start of a new program
    replacement: JobSpec | None = None  # next program; None: unchanged, or to be loaded
    flow: str = ""  # "app.py:flow"
    allow_non_restored: bool = False  # of a replace: drop state that the new program lacks
    leaves: tuple[int, ...] = ()  # slots that go to registered successors; the number of slots stays
    start_timeout_ms: int = 0  # instead of `timeout_ms` for new slots; 0: the same

    @property
    def replaces(self) -> bool:
        return self.replacement is not None or bool(self.flow)

    @property
    def returns(self) -> bool:
        """Returns whether the job itself made this request, to return to full width."""
        return self.id.startswith(RETURN)

    def same_request(self, other: "RescaleRequest") -> bool:
        if self.replaces and other.replaces:
            return not other.flow or self.flow == other.flow  # the driver's answer has no flow
        return (self.parallelism, self.replaces) == (other.parallelism, other.replaces)

    def described(self, spec: JobSpec) -> JobSpec:
        new = self.replacement
        if self.leaves:
            return spec
        if not self.replaces:
            return msgspec.structs.replace(spec, parallelism=self.parallelism, full_parallelism=0, narrow_because="")
        if new is None:
            return spec
        outdated = dict.fromkeys((*spec.outdated, spec.fingerprint))
        kept = [each for each in outdated if each not in ("", new.fingerprint)][-_OUTDATED:]
        return msgspec.structs.replace(
            spec,
            chains=new.chains,
            allow_non_restored=self.allow_non_restored,
            program=self.id,
            fingerprint=new.fingerprint,
            outdated=tuple(kept),
        )


@dataclass
class Rescale:
    request: RescaleRequest
    before: JobSpec
    asked_ms: int
    state: RescaleState = RescaleState.STARTING
    waits_since_ms: int | None = None  # begin of a generation, if none ran at the request
    barrier: int | None = None  # first checkpoint with which sources stop
    paused_ms: int | None = None  # trigger of that checkpoint
    decided_ms: int | None = None
    moved_ms: int | None = None  # FENCE was requested
    ended_ms: int | None = None
    error: str = ""
    checked: str = ""  # key of the last manifest that fits the new program
    ahead: FetchingAhead = field(default_factory=FetchingAhead)

    @property
    def parallelism(self) -> int:
        return self.before.parallelism if self.request.replaces else self.request.parallelism

    @property
    def yields(self) -> bool:
        return bool(self.request.returns or self.request.leaves) and self.state is RescaleState.STARTING

    def wait_for_slots(self, now_ms: int) -> None:
        """While new slots are missing, checkpoints go on; the timeout of a request that yields begins anew."""
        if self.state is RescaleState.STARTING:
            self.ahead = FetchingAhead()
            if self.yields:
                self.waits_since_ms = now_ms

    @property
    def is_fulfilled(self) -> bool:
        if self.request.leaves:
            return False
        if self.request.replaces:
            return self.before.program == self.request.id
        is_full = self.before.full_parallelism in (0, self.before.parallelism)
        return is_full and self.before.parallelism == self.request.parallelism

    @property
    def after(self) -> JobSpec:
        return self.request.described(self.before)

    @property
    def what(self) -> str:
        if self.request.replaces:
            return "its program was replaced"
        if self.request.leaves:
            return f"{counted(len(self.request.leaves), 'slot')} left a host"
        return f"rescaled from {self.before.parallelism} to {counted(self.parallelism, 'slot')}"

    @property
    def deadline_ms(self) -> int | None:
        if self.state in (RescaleState.LOADING, RescaleState.STARTING):
            since_ms = self.asked_ms if self.waits_since_ms is None else self.waits_since_ms
            return since_ms + (self.request.start_timeout_ms or self.request.timeout_ms)
        if self.state is RescaleState.STOPPING and self.paused_ms is not None:
            return self.paused_ms + self.request.timeout_ms
        if self.state is RescaleState.COMMITTING:
            return (self.decided_ms or 0) + self.request.timeout_ms
        return None

    def holds_checkpoints(self, decided: int) -> bool:
        """Returns whether no checkpoint but m may begin. `decided`: the newest checkpoint."""
        if self.state is RescaleState.STARTING:
            return self.ahead.holds_others(decided)
        return self.paused_ms is not None and self.state.pausing

    def pauses(self, checkpoint: int) -> bool:
        return self.state.pausing and self.barrier is not None and checkpoint >= self.barrier

    @property
    def status(self) -> RescaleStatus:
        done = self.state is RescaleState.DONE and self.paused_ms is not None and self.ended_ms is not None
        return RescaleStatus(
            id=self.request.id,
            before=self.before.parallelism,
            parallelism=self.parallelism,
            state=self.state.value,
            asked_ms=self.asked_ms,
            ended_ms=self.ended_ms,
            checkpoint=self.barrier,
            paused_ms=self.paused_ms,
            decided_ms=self.decided_ms,
            moved_ms=self.moved_ms,
            pause_ms=(self.ended_ms or 0) - (self.paused_ms or 0) if done else None,
            error=self.error,
            kind="replace" if self.request.replaces else "rescale",
        )


class Rescales:
    def __init__(self) -> None:
        self._entries: OrderedDict[str, Rescale] = OrderedDict()
        self._earlier: tuple[RescaleStatus, ...] = ()
        self._ended_before: frozenset[str] = frozenset()  # ids of this run's requests that ended under predecessors
        self.fallback_spec: JobSpec | None = None  # previous program, until the present has run

    def remember(self, earlier: tuple[RescaleStatus, ...], *, same_run: bool) -> None:
        """Takes predecessors' rescales: no ended request of this run is repeated."""
        self._earlier = earlier
        found = self.open
        self._ended_before = frozenset(each.id for each in earlier) if same_run else frozenset()
        if found is not None and found.request.id in self._ended_before:
            del self._entries[found.request.id]

    @property
    def open(self) -> Rescale | None:
        return next((each for each in self._entries.values() if not each.state.over), None)

    @property
    def before_moving(self) -> Rescale | None:
        found = self.open
        return None if found is None or found.state is RescaleState.MOVING else found

    @property
    def pausing(self) -> bool:
        found = self.open
        return found is not None and found.state.pausing

    @property
    def replaces(self) -> bool:
        found = self.before_moving
        return found is not None and found.request.replaces

    def pauses(self, checkpoint: int) -> bool:
        found = self.open
        return found is not None and found.pauses(checkpoint)

    @property
    def statuses(self) -> tuple[RescaleStatus, ...]:
        own = tuple(each.status for each in self._entries.values())
        ids = {each.id for each in own}
        return (*(each for each in self._earlier if each.id not in ids), *own)[-_KEPT:]

    def refusal(self, request: RescaleRequest, max_parallelism: int) -> str:
        """Returns why the request is refused; "" if possible, or already known."""
        known = self._entries.get(request.id)
        if known is not None:
            if known.request.same_request(request):
                return ""
            if request.replaces or known.request.replaces:
                return f"{request.id} is the id of another wish: use a new one"
            return (
                f"rescale {request.id} was asked for with parallelism {known.parallelism}, and now with "
                f"{request.parallelism}: use a new id for another wish"
            )
        if not request.replaces and not 1 <= request.parallelism <= max_parallelism:
            return (
                f"parallelism {request.parallelism} is not possible: give 1 to {max_parallelism}, the job's "
                "max_parallelism, which is fixed for its life"
            )
        if self.open is not None and not self.open.yields:
            if self.open.request.replaces:
                return "the job's program is being replaced: wait until that is done"
            if self.open.request.leaves:
                return "slots are leaving a host: wait until that is done"
            return (
                f"the job is being rescaled from {self.open.before.parallelism} to "
                f"{counted(self.open.parallelism, 'slot')}: wait "
                "until that is done"
            )
        return ""

    def ask(self, request: RescaleRequest, spec: JobSpec, now_ms: int) -> bool:
        known = request.id in self._entries or request.id in self._ended_before
        if known or self.refusal(request, spec.max_parallelism):
            return False
        self.fail("another change was requested", now_ms)  # an open return yields
        entry = self._entries[request.id] = Rescale(request, spec, now_ms)
        if request.replaces and request.replacement is None:
            entry.state = RescaleState.LOADING
        over = [id for id, each in self._entries.items() if each.state.over]
        for id in over[: -_KEPT or None]:
            del self._entries[id]
        return True

    @property
    def ends_of_returns_ms(self) -> tuple[int, ...]:
        return tuple(each.ended_ms for each in self.statuses if each.id.startswith(RETURN) and each.ended_ms)

    @property
    def failed_returns(self) -> int:
        """Number of the latest returns in a row that failed."""
        ended = [each for each in self.statuses if each.id.startswith(RETURN) and each.ended_ms]
        return next((count for count, each in enumerate(reversed(ended)) if not each.error), len(ended))

    def know_description(self, spec: JobSpec) -> None:
        found = self.open
        if found is not None:
            found.before = spec

    def end_fulfilled(self, now_ms: int) -> None:
        found = self.open
        if found is not None and found.is_fulfilled:
            found.state, found.ended_ms = RescaleState.DONE, now_ms

    def loaded(self, id: str, replacement: JobSpec) -> bool:
        entry = self._in(RescaleState.LOADING)
        if entry is None or entry.request.id != id:
            return False
        entry.request = dataclasses.replace(entry.request, replacement=replacement)
        entry.state = RescaleState.STARTING
        return True

    def stop_with(self, checkpoint: int) -> None:
        entry = self._in(RescaleState.STARTING)
        if entry is not None:
            entry.state, entry.barrier = RescaleState.STOPPING, checkpoint

    def triggered(self, checkpoint: int, now_ms: int) -> None:
        entry = self.open
        if entry is not None and entry.pauses(checkpoint) and entry.paused_ms is None:
            entry.barrier, entry.paused_ms = checkpoint, now_ms

    def completed(self, checkpoint: int, now_ms: int) -> None:
        entry = self._in(RescaleState.STOPPING)
        if entry is not None and entry.barrier is not None and checkpoint >= entry.barrier:
            entry.state, entry.decided_ms = RescaleState.COMMITTING, now_ms

    def move(self, now_ms: int) -> None:
        entry = self._in(RescaleState.COMMITTING)
        if entry is not None:
            entry.state, entry.moved_ms = RescaleState.MOVING, now_ms

    def running(self, now_ms: int) -> bool:
        entry = self.open
        if entry is not None and entry.state in (RescaleState.LOADING, RescaleState.STARTING):
            entry.waits_since_ms = now_ms
        entry = self._in(RescaleState.MOVING)
        if entry is None:
            return False
        entry.state, entry.ended_ms = RescaleState.DONE, now_ms
        return True

    def fail(self, error: str, now_ms: int) -> None:
        entry = self.open
        if entry is not None:
            entry.state, entry.error, entry.ended_ms = RescaleState.FAILED, error, now_ms

    def _in(self, state: RescaleState) -> Rescale | None:
        entry = self.open
        return entry if entry is not None and entry.state is state else None


def unlike(program: JobSpec | None, spec: JobSpec) -> str:
    if program is None:
        return ""
    if program.job != spec.job:
        return f"the flow is called {program.job!r}, the job {spec.job!r}: give the flow the job's name"
    if program.max_parallelism != spec.max_parallelism:
        return (
            f"the flow has max_parallelism {program.max_parallelism}, the job {spec.max_parallelism}, which is fixed "
            "for its life: give the flow the same"
        )
    new, old = program.checkpoints.mode, spec.checkpoints.mode
    return "" if new == old else f"the flow's mode is {new}, the job's {old}: give the flow the same"


# Fewer slots while cores are away (`at_least`), and the return to full width. Pure.
# States and moves: docs/design/rescaling-events.md.

_TIMEOUT_MS = 60_000  # of a return, once all new slots are registered
_RECENT, _LONGEST = 60, 16  # times `degrade_after`; new slots have up to 16 times `_TIMEOUT_MS`


def full_width(spec: JobSpec) -> int:
    return spec.full_parallelism or spec.parallelism


def is_narrow(spec: JobSpec) -> bool:
    return spec.parallelism < full_width(spec)


def narrowed(spec: JobSpec, present: int, absences: Sequence[AbsentSlot] = ()) -> JobSpec | None:
    """Returns None if the job waits for more slots."""
    if spec.at_least is None or not max(1, spec.at_least) <= present < spec.parallelism:
        return None
    return msgspec.structs.replace(
        spec, parallelism=present, full_parallelism=full_width(spec), narrow_because=_by_host(absences)
    )


def _by_host(absences: Sequence[AbsentSlot]) -> str:
    hosts: dict[str, list[str]] = {}
    for each in absences:
        hosts.setdefault(each.host, []).append(str(each.slot))
    texts = [
        f"slot{'s' if len(slots) > 1 else ''} {some_of(slots, ', ')}{f' of host {host}' if host else ''}"
        for host, slots in hosts.items()
    ]
    return some_of(texts, ", ")


def widening(spec: JobSpec, token: int, ends_ms: Sequence[int], now_ms: int, failed: int = 0) -> RescaleRequest | None:
    """Request for full width, if due. `ends_ms`: of earlier returns; the last `failed` of them failed."""
    if not is_narrow(spec) or now_ms < _due_ms(spec.degrade_after_ms, ends_ms, now_ms):
        return None
    start_ms = _TIMEOUT_MS * min(1 << failed, _LONGEST)  # sources stop for the usual time at most
    return RescaleRequest(f"{RETURN}{token}-{now_ms}", full_width(spec), _TIMEOUT_MS, start_timeout_ms=start_ms)


def _due_ms(degrade_after_ms: int, ends_ms: Sequence[int], now_ms: int) -> int:
    recent = [ended_ms for ended_ms in ends_ms if ended_ms > now_ms - _RECENT * degrade_after_ms]
    if not recent:
        return now_ms
    return max(recent) + degrade_after_ms * min(1 << (len(recent) - 1), _LONGEST)


def shown(spec: JobSpec) -> str:
    if not is_narrow(spec):
        return ""
    without = f" without {spec.narrow_because}" if spec.narrow_because else ""
    return f"{spec.parallelism} of {full_width(spec)} slots{without}, until there are cores for all"
