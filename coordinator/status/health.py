"""Progress of a job, and the cause of missing progress. Pure.

| state              | when                                                                                          |
|---|---|
| STARTING           | before the first generation of this process runs                                              |
| RECOVERING         | between generations, or a restarted coordinator looks for the job's slots                     |
| RUNNING            | none of the states below                                                                      |
| WAITING_STORE      | a necessary store call keeps failing, a checkpoint has all acks and is not decided, or the    |
|                    | append of another record, such as that of a new generation, has no answer                     |
| WAITING_SLOTS      | slots of a job that has run are missing, and have not come back for `MISSING_MS`               |
| WAITING_NETWORK    | slots do not hear each other although both reach the coordinator                              |
| WAITING_SERVER     | a generation cannot begin because a server that an operator needs does not answer             |
| WAITING_SINK       | a commit keeps failing, a sink that lags has not committed for the timeout, or so many        |
|                    | commits are open that no more checkpoints are taken                                           |
| NO_CHECKPOINT      | no checkpoint has completed for the timeout, counted while the job ran                        |
| WAITING_RESTORE    | the slots have restored for the timeout, and are not done                                     |
| BLOCKED            | recently a step of the program, a connector of ours or a lack of cores blocked a slot         |
| FINISHING          | the last record is being written                                                              |
| FENCED FINISHED FAILED STOPPED   | the job has ended                                                               |

Once slow commits have delayed checkpoints, the state is WAITING_SINK until the sink has caught up. The state decides
nothing. Time without a checkpoint is summed over generations: a job in a restart loop must not look healthy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.checkpoints.commits import FailingCommit
from barrier_runtime.coordinator.checkpoints.slowness import (
    REPORT_AFTER_MS,
    CheckpointUploads,
    SlowCommit,
    SlowCommits,
    SlowUpload,
    SlowUploads,
    Uncommitted,
    slow_sink,
    slow_upload,
)
from barrier_runtime.coordinator.status.status import AbsentSlot, LeavingSlot, SparesStatus
from barrier_runtime.state.texts import counted

State: TypeAlias = Literal[
    "STARTING",
    "RECOVERING",
    "RUNNING",
    "WAITING_STORE",
    "WAITING_SLOTS",
    "WAITING_NETWORK",
    "WAITING_SERVER",
    "WAITING_SINK",
    "NO_CHECKPOINT",
    "WAITING_RESTORE",
    "BLOCKED",
    "FINISHING",
    "FENCED",
    "FINISHED",
    "FAILED",
    "STOPPED",
]
TROUBLED: frozenset[State] = frozenset(
    {
        "WAITING_STORE",
        "WAITING_SLOTS",
        "WAITING_NETWORK",
        "WAITING_SERVER",
        "WAITING_RESTORE",
        "WAITING_SINK",
        "NO_CHECKPOINT",
        "BLOCKED",
    }
)

HANGING_MS = 5_000  # without an answer of the store
MISSING_MS = 10_000  # carriers replace a process in less
BLOCKED_MS = 30_000  # how long a blocked slot is shown
STEP_REMEDY = (
    "let functions of the program in these steps return sooner; if the steps have none, barrier-runtime is at fault: "
    "report it"
)
CONNECTOR_REMEDY = (
    "a source or sink of barrier-runtime needed this time, no function of the program: report it with its kind and "
    "the size of its largest rows"
)
STARVED_REMEDY = "the machine had no free core for most of this time: give the job more cores, or fewer slots"
_NAMED = 8

ENDS: dict[str, State] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "cancelled": "STOPPED",
    "fenced": "FENCED",
    "replaced": "FENCED",
}


def ended_in_words(outcome: str) -> str:
    """Stored records and calls say "cancelled"."""
    return "stopped" if outcome == "cancelled" else outcome


@dataclass(frozen=True)
class Condition:
    state: State
    reason: str
    since_ms: int
    slow: tuple[SlowCommit, ...] = ()
    slow_uploads: tuple[SlowUpload, ...] = ()

    def __str__(self) -> str:
        return described(self.state, self.reason)


def described(state: str, reason: str) -> str:
    return f"{state}{' ' if state == 'FENCED' else ': '}{reason}" if reason else state


def what_died(reason: str) -> str:
    """A process's death, if `reason` names a death; else `reason`."""
    parts = [part for part in reason.split("; ") if " died of " in part]
    return "; ".join(parts) or reason.removeprefix("PeerLost: ")


@dataclass(frozen=True)
class StoreRetry:
    what: str
    error: str
    attempts: int = 1
    keeps_from: Literal["progress", "sweeping"] = "progress"


@dataclass(frozen=True)
class Away:
    """Unavailable server, needed to open `operator`."""

    operator: str
    error: str
    attempts: int


@dataclass(frozen=True)
class OpenCheckpoint:
    """`missing` names subtasks with operators; naming all for each look would be most of the look."""

    checkpoint: int
    triggered_ms: int
    missing: Callable[[], tuple[str, ...]]


@dataclass(frozen=True)
class StoreWait:
    """A checkpoint with all acks; the write of `key` has no answer."""

    checkpoint: int
    key: str
    since_ms: int


@dataclass(frozen=True)
class BlockedSlot:
    """`by`: subtask with operators, and duration. `reading`, `starved`: as in `Heartbeat`."""

    slot: int
    by: str
    reported_ms: int
    reading: bool = False
    starved: bool = False

    @property
    def remedy(self) -> str:
        return STARVED_REMEDY if self.starved else CONNECTOR_REMEDY if self.reading else STEP_REMEDY


@dataclass(frozen=True)
class Facts:
    phase: str
    timeout_ms: int
    outcome: str | None = None
    ended_because: str = ""
    activity: str = ""  # of a starting or recovering job
    completed: int = 0
    expects_checkpoint: bool = True  # False: only commits are due
    checkpoint: OpenCheckpoint | None = None
    last_failure: str = ""  # since the last complete checkpoint
    store: tuple[StoreRetry, ...] = ()
    undecided: StoreWait | None = None
    appending: str = ""  # a record whose put has no answer
    failing: tuple[FailingCommit, ...] = ()
    waiting: tuple[Away, ...] = ()
    absences: tuple[AbsentSlot, ...] = ()  # once the job has run
    silence: str = ""  # slots that do not hear each other
    held_by: Mapping[str, int] = field(default_factory=dict)  # cores that others occupy, by name
    start_error: str = ""  # of processes for missing slots
    behind: tuple[tuple[str, int], ...] = ()  # sinks behind `completed`, with last checkpoint
    blocked: tuple[BlockedSlot, ...] = ()
    held_back: str = ""  # why no checkpoint is taken
    uncommitted: tuple[Uncommitted, ...] = ()
    uploaded: CheckpointUploads | None = None
    interval_ms: int = 0
    narrow: str = ""  # fewer slots than the job should have
    leaving: str = ""  # hosts that slots leave


class ProgressWatch:
    """Call `look` when facts may have changed, and at `next_ms`."""

    def __init__(self) -> None:
        self.condition = Condition("STARTING", "", 0)
        self.slow = SlowCommits()
        self.slow_uploads = SlowUploads()
        self._held_up = False
        self._looked = False
        self.next_ms: int | None = None  # when time alone may change the condition
        self._ran = False
        self._completed = 0
        self._running_since_ms: int | None = None
        self._restoring_since_ms: int | None = None
        self._idle_ms = 0  # running time without a checkpoint, of earlier generations
        self._since: dict[tuple[str, str, int], int] = {}  # (kind, name, progress or begin) -> first seen

    def look(self, facts: Facts, now_ms: int) -> Condition:
        self._count_running_time(facts, now_ms)
        if facts.phase != "restoring":
            self._restoring_since_ms = None
        elif self._restoring_since_ms is None:
            self._restoring_since_ms = now_ms
        self._remember(facts, now_ms)
        self.slow.look(facts.uncommitted, facts.interval_ms, now_ms, running=facts.phase == "running")
        self.slow_uploads.look(facts.uploaded, facts.interval_ms, running=facts.phase == "running")
        self.next_ms = self.slow.next_ms
        state, reason = self._judge(facts, now_ms)
        same = self._looked and self.condition.state == state
        since_ms = self.condition.since_ms if same else now_ms
        self._looked = True
        self.condition = Condition(state, reason, since_ms, self.slow.shown, self.slow_uploads.shown)
        return self.condition

    def _count_running_time(self, facts: Facts, now_ms: int) -> None:
        running = facts.phase == "running"
        self._ran = self._ran or running or facts.phase == "resuming"
        if facts.completed > self._completed:
            self._completed, self._idle_ms = facts.completed, 0
            self._running_since_ms = now_ms if running else None
        elif running and self._running_since_ms is None:
            self._running_since_ms = now_ms
        elif not running and self._running_since_ms is not None:
            self._idle_ms += now_ms - self._running_since_ms
            self._running_since_ms = None

    def _remember(self, facts: Facts, now_ms: int) -> None:
        known = [("store", retry.what, 0) for retry in facts.store]
        known += [("append", facts.appending, 0)] if facts.appending else []
        known += [("open", away.operator, 0) for away in facts.waiting]
        known += [("slot", str(each.slot), 0) for each in facts.absences]
        if facts.phase == "running":
            known += [_commit_trouble(failing) for failing in facts.failing]
            known += [("behind", sink, through) for sink, through in facts.behind]
            known += [("held back", "", 0)] if facts.held_back else []
        self._since = {trouble: self._since.get(trouble, now_ms) for trouble in known}

    def _over(self, since_ms: int, after_ms: int, now_ms: int) -> bool:
        at_ms = since_ms + after_ms
        if at_ms > now_ms and (self.next_ms is None or at_ms < self.next_ms):
            self.next_ms = at_ms
        return at_ms <= now_ms

    def _judge(self, facts: Facts, now_ms: int) -> tuple[State, str]:
        if facts.outcome is not None:
            return ENDS[facts.outcome], facts.ended_because
        store = self._store_trouble(facts, now_ms)
        if store:
            return "WAITING_STORE", store
        if facts.phase == "finishing":
            return "FINISHING", facts.activity
        if facts.phase != "running":
            if self._slots_are_missing(facts, now_ms):
                return "WAITING_SLOTS", missing_slots(facts.absences, facts.held_by, now_ms, facts.start_error)
            if facts.silence:
                return "WAITING_NETWORK", facts.silence
            away = self._away(facts, now_ms)
            if away:
                return "WAITING_SERVER", away
            if self._restoring_since_ms is not None and self._over(self._restoring_since_ms, facts.timeout_ms, now_ms):
                return "WAITING_RESTORE", facts.activity
            return ("RECOVERING" if self._ran else "STARTING"), facts.activity
        sink = self._sink_trouble(facts, now_ms)
        if sink:
            return "WAITING_SINK", sink
        assert self._running_since_ms is not None, "a running job without its start"
        since_ms = self._running_since_ms - self._idle_ms
        if facts.expects_checkpoint and self._over(since_ms, facts.timeout_ms, now_ms):
            return "NO_CHECKPOINT", _no_checkpoint(facts, now_ms - since_ms, now_ms)
        blocked = [slot for slot in facts.blocked if not self._over(slot.reported_ms, BLOCKED_MS, now_ms)]
        slow = [*map(slow_sink, self.slow.shown), *map(slow_upload, self.slow_uploads.shown)]
        slow += [f"with {facts.narrow}"] if facts.narrow else []
        slow += [facts.leaving] if facts.leaving else []
        return ("BLOCKED", _blocked(blocked)) if blocked else ("RUNNING", some_of(slow, "; "))

    def _store_trouble(self, facts: Facts, now_ms: int) -> str:
        after_ms = min(REPORT_AFTER_MS, facts.timeout_ms)
        lasting = [
            f"{retry.what}: {retry.error} ({_times(retry.attempts)}, it is tried again)"
            for retry in facts.store
            if self._over(self._since[("store", retry.what, 0)], after_ms, now_ms)
        ]
        wait = facts.undecided
        if not lasting and wait is not None and self._over(wait.since_ms, min(HANGING_MS, facts.timeout_ms), now_ms):
            waited = in_seconds(now_ms - wait.since_ms)
            lasting = [f"write of {wait.key} for checkpoint {wait.checkpoint}: no answer for {waited}"]
        elif not lasting and wait is None and facts.appending:
            since_ms = self._since[("append", facts.appending, 0)]
            if self._over(since_ms, min(HANGING_MS, facts.timeout_ms), now_ms):
                lasting = [f"append {facts.appending}: no answer for {in_seconds(now_ms - since_ms)}"]
        return some_of(lasting, "; ")

    def _slots_are_missing(self, facts: Facts, now_ms: int) -> bool:
        after_ms = min(MISSING_MS, facts.timeout_ms)
        return any(
            self._over(each.since_ms or self._since[("slot", str(each.slot), 0)], after_ms, now_ms)
            for each in facts.absences
        )

    def _away(self, facts: Facts, now_ms: int) -> str:
        after_ms = min(REPORT_AFTER_MS, facts.timeout_ms)
        lasting = [
            f"operator {away.operator} cannot be opened: {away.error} ({_times(away.attempts)}, it is tried again)"
            for away in facts.waiting
            if self._over(self._since[("open", away.operator, 0)], after_ms, now_ms)
        ]
        return some_of(lasting, "; ")

    def _sink_trouble(self, facts: Facts, now_ms: int) -> str:
        lasting, named = [], set()
        for failing in facts.failing:
            since_ms = self._since[_commit_trouble(failing)]
            if self._over(since_ms, min(REPORT_AFTER_MS, facts.timeout_ms), now_ms):
                named.add(failing.sink)
                lasting.append(
                    f"sink {failing.sink} cannot commit checkpoint {failing.checkpoint}: {failing.error} "
                    f"({_times(failing.attempts)}, it is tried again)"
                )
        for sink, through in facts.behind:
            since_ms = self._since[("behind", sink, through)]
            if self._over(since_ms, facts.timeout_ms, now_ms) and sink not in named:
                lasting.append(
                    f"sink {sink} has committed nothing for {in_seconds(now_ms - since_ms)}: it is at checkpoint "
                    f"{through}, {facts.completed} is completed"
                )
        if facts.held_back:
            since_ms = self._since[("held back", "", 0)]
            if self._over(since_ms, min(REPORT_AFTER_MS, facts.timeout_ms), now_ms):
                self._held_up = True
                lasting.insert(0, f"no checkpoint is taken until sinks come along: {facts.held_back}")
        self._held_up = self._held_up and bool(self.slow.known)
        if lasting or self._held_up:
            lasting += map(slow_sink, self.slow.known)
        return some_of(lasting, "; ")


def _commit_trouble(failing: FailingCommit) -> tuple[str, str, int]:
    """The key stays the same until a commit, also for newer checkpoints."""
    return ("commit", failing.sink, failing.since_ms)


def missing_slots(absences: Sequence[AbsentSlot], held_by: Mapping[str, int], now_ms: int, failing: str = "") -> str:
    hosts: dict[str, list[AbsentSlot]] = {}
    for each in absences:
        hosts.setdefault(each.host, []).append(each)
    texts = [_missing_of_host(host, each, now_ms) for host, each in hosts.items()]
    held = sorted(held_by.items(), key=lambda holder: (-holder[1], holder[0]))
    if held:
        texts.append(f"cores are held by {some_of([f'{name} ({cores})' for name, cores in held], ', ')}")
    return some_of([*texts, failing] if failing else texts, "; ")


def _missing_of_host(host: str, absences: list[AbsentSlot], now_ms: int) -> str:
    slots = f"slot{'s' if len(absences) > 1 else ''} {some_of([str(each.slot) for each in absences], ', ')}"
    since_ms = min((each.since_ms for each in absences if each.since_ms), default=0)
    text = f"{slots} of host {host}" if host else slots
    text += f" missing for {in_seconds(now_ms - since_ms)}" if since_ms else " missing"
    ending = [str(each.ending) for each in absences if each.ending is not None]
    if not ending:
        return text
    if any(each.carrier == "processes" for each in absences):
        return f"{text}, no new process has started there"
    return f"{text}, Spark has not replaced task {some_of(ending, ', ')} there"


def number_for_driver(slot: AbsentSlot | LeavingSlot) -> int:
    return slot.slot if slot.started_as < 0 else slot.started_as


def spares_in_words(spares: SparesStatus) -> str:
    return f"{spares.ready} of {counted(spares.wanted, 'spare')} ready"


def leaving_in_words(leaving: Sequence[LeavingSlot]) -> str:
    hosts: dict[str, list[LeavingSlot]] = {}
    for each in leaving:
        hosts.setdefault(each.host, []).append(each)
    return some_of([_leaves(host, each) for host, each in hosts.items()], "; ")


def _leaves(host: str, leaving: list[LeavingSlot]) -> str:
    awaits = {
        "asked": "awaits a process on another host",
        "registered": "awaits the next move",
        "moving": "moves at a barrier",
        "ended": "stays: no process on another host came in time",
    }
    since_s = min(each.since_ms for each in leaving) // 1000
    since = f"{since_s // 3600 % 24:02}:{since_s // 60 % 60:02}:{since_s % 60:02}"
    slots = [f"slot {each.slot} {awaits[each.state]}" for each in leaving]
    return f"host {host} leaves since {since} UTC: {some_of(slots, ', ')}"


def _blocked(slots: list[BlockedSlot]) -> str:
    texts = []
    for remedy in (STEP_REMEDY, CONNECTOR_REMEDY, STARVED_REMEDY):
        who = some_of([f"slot {slot.slot} by {slot.by}" for slot in slots if slot.remedy == remedy], "; ")
        if who:
            texts.append(f"{who}: meanwhile it took no barrier and gave no sign of life; {remedy}")
    return "; ".join(texts)


def _no_checkpoint(facts: Facts, idle_ms: int, now_ms: int) -> str:
    text = f"none has completed for {in_seconds(idle_ms)} of running"
    under_way = facts.checkpoint
    if under_way is None:
        text += "; none is under way"
    else:
        text += (
            f"; checkpoint {under_way.checkpoint}, triggered {in_seconds(now_ms - under_way.triggered_ms)} ago, waits "
        )
        text += f"for {some_of(missing, ', ')}" if (missing := under_way.missing()) else "for the store"
    return f"{text}; the last one failed: {facts.last_failure}" if facts.last_failure else text


def some_of(texts: tuple[str, ...] | list[str], between: str) -> str:
    more = len(texts) - _NAMED
    return between.join(texts[:_NAMED]) + (f"{between}and {more} more" if more > 0 else "")


def _times(attempts: int) -> str:
    return counted(attempts, "attempt")


def in_seconds(ms: int) -> str:
    return f"{ms / 1000:.0f} s" if ms >= 10_000 else f"{ms / 1000:.1f} s"
