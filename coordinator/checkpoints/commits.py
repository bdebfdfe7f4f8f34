"""How far every sink has made its transactions visible, and what its global committer is to be told next.

A sink subtask commits its own part when a checkpoint is complete. A sink with a *global committer* shows nothing by
that: once all of its subtasks have committed up to checkpoint n, slot 0 is told to make all of it visible at once, with
the committables of n's manifest; once that is done everybody is told, and only then do the subtasks forget them.

    checkpoint n complete → every subtask Committed(n) → CommitGlobally(n) to slot 0 → Committed(n, global) → Visible(n)

A job is finished only when all are through (I10). All of it follows from the log, the manifest and what slots say, so a
successor finds its place again by itself.

A commit that fails is a *trouble* of its sink's subtask, for people. A successor hears of it with the next attempt,
half a minute later at worst, so troubles are in the job's history, too:

| what is said of a checkpoint of a sink's subtask | no trouble is known | a trouble is known |
|---|---|---|
| an attempt failed, and it is not visible yet | known, since now | known since then, with the newest reason |
| a predecessor stored that, and it is not visible yet | known, since then | as it is |
| it is visible (also if a slot says so when it comes back) | none | gone |
| one before it is visible | none | as it is |
| another number of slots, another program | none | gone: all was visible before that |

A sink with `commit_every` has its global commit held back, see `held_commits`: until it is due, what waits for it does
not count as behind.

`noted` says when the history is worth writing: a trouble began or ended, or has another reason, but not twice in
`NOTE_AGAIN_MS` (reasons may contain times and numbers of requests). Attempts alone are not worth it.

Sinks whose global commits are held back for `commit_every`: what is due, and since when. Pure: facts and `now` in.

A table of a lakehouse gets one commit for all checkpoints of that time. The coordinator alone holds back; subtasks
commit their parts with each checkpoint, and manifests list everything that is not visible.

| a sink with `commit_every`                            | its global committer                           |
|---|---|
| a checkpoint completes, `commit_every` is not over    | waits; the checkpoint does not count as behind |
| `commit_every` has passed since a commit was last due | is due, up to the newest completed checkpoint  |
| no commit was due in this process yet                 | is due with the first checkpoint               |
| a stop, drain, savepoint, rescale, replace or the end of input is under way, or too many bytes are pending | is due |
| a new generation of the same process                  | keeps its rhythm                               |
| a commit is due, and is not done                      | counts as one checkpoint behind                |
| … and the next one becomes due, too                   | each checkpoint of that one counts as well     |
| the clock was set back                                | waits for `commit_every` from then on          |

Another process (a start, a takeover) does not know when a commit was last due and begins with a commit of what was
decided. So a job that crashes again and again shows what each run decided when the next one begins, at most one commit
for each start, whose rate the restart's back-off bounds.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from barrier_runtime.coordinator.checkpoints.slowness import Uncommitted
from barrier_runtime.coordinator.wire.codec import MAX_CARRIED_BYTES, encoded_size
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    CommitFailing,
    Committed,
    JobSpec,
    ManifestRef,
    sink_key,
)
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, without_own

HOLD_BYTES = 1 << 20  # of what sinks list as pending, which is stored with every checkpoint: more is committed at once


@dataclass(frozen=True)
class DueCommit:
    """A commit up to `checkpoint` became due at `since_ms`; `count` checkpoints were held back for it."""

    checkpoint: int
    since_ms: int
    count: int


@dataclass
class _Held:
    every_ms: int
    last_ms: int | None = None  # when a commit was last due
    newest: int = 0  # the newest checkpoint that was due
    count: int = 0  # completed since
    open: deque[DueCommit] = field(default_factory=deque)  # due and not done, oldest first


class HeldCommits:
    """`every_ms`: by sink; those that commit with each checkpoint are left out."""

    def __init__(self, every_ms: Mapping[str, int]) -> None:
        self._sinks = {sink: _Held(each) for sink, each in every_ms.items() if each > 0}

    def __contains__(self, sink: str) -> bool:
        return sink in self._sinks

    def completed(self) -> None:
        """One more checkpoint is complete."""
        for held in self._sinks.values():
            held.count += 1

    def look(self, sink: str, completed: int, through: int, now_ms: int, *, at_once: bool) -> None:
        """Decide whether `sink`, which has committed `through`, is due. `completed`: the newest completed
        checkpoint."""
        held = self._sinks[sink]
        if held.last_ms is not None and held.last_ms > now_ms:
            held.last_ms = now_ms
        if completed <= max(held.newest, through):
            return
        if at_once or held.last_ms is None or now_ms - held.last_ms >= held.every_ms:
            held.open.append(DueCommit(completed, now_ms, held.count))
            held.newest, held.last_ms, held.count = completed, now_ms, 0

    def next_ms(self, completed: int, through: Mapping[str, int]) -> int | None:
        """When time alone makes a commit due."""
        moments = [
            (held.last_ms or 0) + held.every_ms
            for sink, held in self._sinks.items()
            if completed > max(held.newest, through[sink])
        ]
        return min(moments, default=None)

    def committed(self, sink: str, through: int) -> None:
        due = self._sinks[sink].open
        while due and due[0].checkpoint <= through:
            due.popleft()

    def oldest_due(self, sink: str) -> DueCommit | None:
        """The commit that has been due for longest and is not done."""
        due = self._sinks[sink].open
        return due[0] if due else None

    @property
    def behind(self) -> int:
        """How many checkpoints count as not visible in time, of the sink that has most."""
        counts = (1 + sum(each.count for each in list(held.open)[1:]) for held in self._sinks.values() if held.open)
        return max(counts, default=0)


_DECIDED_KEPT = 16  # decided manifests' lists of committables
NOTE_AGAIN_MS = 10_000
MAX_PENDING_BYTES = 32 << 20  # of what sinks list as pending, because that is stored with every checkpoint


@dataclass(frozen=True)
class FailingCommit:
    sink: str
    checkpoint: int
    attempts: int
    error: str
    since_ms: int = 0  # its first attempt failed; 0: not known
    noted_ms: int = 0  # it began, or its reason became another one that the history is to have


@dataclass(frozen=True)
class GlobalCommit:
    """Due: sink `sink` up to `checkpoint`. `part`: what its manifest says of the sink, or where the manifest is when
    that is too large for a message. None: it has to be read first."""

    sink: str
    checkpoint: int
    part: tuple[OperatorSnapshot, ...] | ManifestRef | None


@dataclass(frozen=True)
class _Decided:
    parts: dict[str, tuple[OperatorSnapshot, ...] | ManifestRef]  # by sink with a global committer
    in_store: bool  # some of it can only be read from the store


class CommitTracker:
    def __init__(self, spec: JobSpec) -> None:
        self._parallelism = spec.parallelism
        self._max_behind = spec.checkpoints.max_commits_behind
        self._global_sinks = tuple(sink for chain in spec.chains for sink in chain.global_sinks)
        members = [
            (sink, subtask) for chain in spec.chains for sink in chain.sinks for subtask in range(spec.parallelism)
        ]
        members += [(sink, GLOBAL_COMMITTER) for sink in self._global_sinks]
        self._through = {sink_key(sink, subtask): 0 for sink, subtask in members}
        every_ms = {sink: each for chain in spec.chains for sink, each in chain.commit_every_ms.items()}
        self._held = HeldCommits({sink: every_ms.get(sink, 0) for sink in self._global_sinks})
        self._held_members = {
            sink_key(sink, GLOBAL_COMMITTER): sink for sink in self._global_sinks if sink in self._held
        }
        self.last_through = ""  # the sink that committed last
        self._failing: dict[str, FailingCommit] = {}
        self._open: deque[tuple[int, int]] = deque()  # completed checkpoints that some sink is not through with, oldest
        # first, and when each was decided; held back commits do not count
        self._decided: dict[int, _Decided] = {}  # checkpoint -> what its manifest says of global sinks
        self._due: dict[str, int] = {}  # sink -> the checkpoint that was due last: its global committer may be at it
        self._sinks = frozenset(sink for chain in spec.chains for sink in chain.sinks)
        self._held_bytes = 0  # of `_pending_bytes`, those of sinks that are held back
        self._newest = 0  # the newest checkpoint whose manifest was seen, and what its sinks list as pending
        self._pending_bytes = 0

    def committed(self, message: Committed) -> None:
        self._advance(sink_key(message.operator, message.subtask), message.checkpoint)

    def reconcile(self, slot: int, committed: dict[str, int]) -> None:
        """What a slot says of its own sinks on (re)connection."""
        own = (slot, GLOBAL_COMMITTER) if slot == 0 else (slot,)
        for sink, checkpoint in committed.items():
            if sink.endswith(tuple(sink_key("", subtask) for subtask in own)):
                self._advance(sink, checkpoint)

    def settled(self, checkpoint: int) -> None:
        """All up to `checkpoint` was made visible by an earlier run."""
        for sink in self._through:
            self._advance(sink, checkpoint)

    def failing(self, message: CommitFailing, now_ms: int) -> None:
        sink = sink_key(message.operator, message.subtask)
        if sink not in self._through or message.checkpoint <= self._through[sink]:
            return
        new = FailingCommit(sink, message.checkpoint, message.attempts, message.error, now_ms, now_ms)
        known = self._failing.get(sink)
        if known is not None:
            again = new.error != known.error and now_ms - known.noted_ms >= NOTE_AGAIN_MS
            new = replace(new, since_ms=known.since_ms, noted_ms=now_ms if again else known.noted_ms)
        self._failing[sink] = new

    def remember(self, troubles: Iterable[FailingCommit]) -> None:
        """What a predecessor stored of this run."""
        for trouble in troubles:
            if trouble.checkpoint > self._through.get(trouble.sink, trouble.checkpoint):
                self._failing.setdefault(trouble.sink, trouble)

    def all_through(self, checkpoint: int) -> bool:
        return all(through >= checkpoint for through in self._through.values())

    def completed(self, checkpoint: int, now_ms: int) -> None:
        """`checkpoint` is complete. Remembered until every sink is through."""
        self._open.append((checkpoint, now_ms))
        self._held.completed()
        self._close()

    def look(self, completed: int, now_ms: int, *, at_once: bool) -> None:
        """Decide which of the global commits that are held back are due now. `at_once`: all of them."""
        for member, sink in self._held_members.items():
            now = at_once or self._held_bytes > HOLD_BYTES
            self._held.look(sink, completed, self._through[member], now_ms, at_once=now)

    def next_due_ms(self, completed: int) -> int | None:
        """When time alone makes a global commit due; None: nothing is held back."""
        through = {sink: self._through[member] for member, sink in self._held_members.items()}
        return self._held.next_ms(completed, through)

    @property
    def too_far_behind(self) -> str:
        """Why no more checkpoints are taken; "" if they are. A snapshot lists what is not visible yet: while sinks do
        not come along, more checkpoints only add to it."""
        waiting = max(len(self._open), self._held.behind)
        if waiting >= self._max_behind:
            return (
                f"{waiting} completed checkpoints are not visible yet, {self._max_behind} are allowed "
                "(max_commits_behind)"
            )
        if self._pending_bytes > MAX_PENDING_BYTES and not self.all_through(self._newest):
            return (
                f"what sinks have to commit takes {self._pending_bytes:,} bytes of checkpoint {self._newest}, "
                f"{MAX_PENDING_BYTES:,} are allowed"
            )
        return ""

    def uncommitted(self) -> tuple[Uncommitted, ...]:
        """By sink, the oldest completed checkpoint that it is not through with. Not of sinks whose commit fails: that
        is a trouble of its own."""
        through: dict[str, int] = {}
        for key, checkpoint in self._through.items() if self._open else ():
            if key not in self._held_members:
                sink = key.rpartition("/")[0]
                through[sink] = min(checkpoint, through.get(sink, checkpoint))
        failing = {key.rpartition("/")[0] for key in self._failing}
        oldest = {
            sink: next((Uncommitted(sink, number, at_ms) for number, at_ms in self._open if number > done), None)
            for sink, done in through.items()
        }
        for sink in self._held_members.values():
            due = self._held.oldest_due(sink)
            if due is not None and oldest.get(sink) is None:
                oldest[sink] = Uncommitted(sink, due.checkpoint, due.since_ms)
        return tuple(each for sink, each in oldest.items() if each is not None and sink not in failing)

    def behind(self, checkpoint: int) -> tuple[str, ...]:
        """Sink subtasks (and global committers) that have not yet made `checkpoint` visible, but for what is held
        back."""
        late = (key for key, through in self._through.items() if through < checkpoint and not self._is_held(key))
        return tuple(sorted(late))

    def _is_held(self, member: str) -> bool:
        sink = self._held_members.get(member)
        return sink is not None and self._held.oldest_due(sink) is None

    @property
    def through(self) -> dict[str, int]:
        return dict(self._through)

    @property
    def troubles(self) -> tuple[FailingCommit, ...]:
        return tuple(self._failing[sink] for sink in sorted(self._failing))

    @property
    def noted(self) -> frozenset[tuple[str, int, int]]:
        """Another value whenever a trouble is worth writing down."""
        return frozenset((each.sink, each.since_ms, each.noted_ms) for each in self._failing.values())

    # ------------------------------------------------------------ global committers

    def decided(self, checkpoint: int, operators: tuple[OperatorSnapshot, ...], manifest: ManifestRef) -> None:
        """`checkpoint` is complete with this manifest: keep what global committers will need of it."""
        self._newest = checkpoint
        operators = tuple(without_own(each) for each in operators)  # rows that are not to be committed yet
        self._pending_bytes = sum(_value_bytes(each) for each in operators if each.operator in self._sinks)
        self._held_bytes = sum(_value_bytes(each) for each in operators if each.operator in self._held)
        if self._global_sinks:
            self._decided[checkpoint] = self._decision(operators, manifest)
            self._forget()

    def _decision(self, operators: tuple[OperatorSnapshot, ...], manifest: ManifestRef) -> _Decided:
        parts: dict[str, tuple[OperatorSnapshot, ...] | ManifestRef] = {}
        in_store = False
        for sink in self._global_sinks:
            mine = tuple(each for each in operators if each.operator == sink)
            carried = encoded_size(mine) <= MAX_CARRIED_BYTES
            parts[sink] = mine if carried else manifest
            in_store = in_store or not carried or any(each.objects for each in mine)
        return _Decided(parts, in_store)

    @property
    def held(self) -> frozenset[int]:
        """Checkpoints whose manifest and files a global committer may still have to read."""
        if not self._global_sinks:
            return frozenset()
        done = min(self._through[sink_key(sink, GLOBAL_COMMITTER)] for sink in self._global_sinks)
        return frozenset(number for number, each in self._decided.items() if each.in_store and number > done)

    def _forget(self) -> None:
        """What every global committer is through, and more than enough of the rest: the oldest stays, because a sink
        that lags comes to it first, and the one that a global committer is at; of the others any will do, because a
        manifest lists all that is not visible."""
        done = min(self._through[sink_key(sink, GLOBAL_COMMITTER)] for sink in self._global_sinks)
        for old in [number for number in self._decided if number <= done and number != max(self._decided)]:
            del self._decided[old]
        kept = sorted(self._decided.keys() - self._due.values())
        if len(kept) > _DECIDED_KEPT:
            del self._decided[kept[len(kept) // 2]]

    def due_globally(self) -> tuple[GlobalCommit, ...]:
        """What every subtask has committed and the global committer has not, per sink, but for what `look` holds back.
        Held until more is due."""
        due = []
        for sink in self._global_sinks:
            reached = min(self._through[sink_key(sink, subtask)] for subtask in range(self._parallelism))
            done = self._through[sink_key(sink, GLOBAL_COMMITTER)]
            if sink in self._held:
                wanted = self._held.oldest_due(sink)
                if wanted is None or reached < wanted.checkpoint:
                    continue
            known = max((number for number in self._decided if done < number <= reached), default=None)
            if known is not None:
                self._due[sink] = known
                due.append(GlobalCommit(sink, known, self._decided[known].parts[sink]))
            elif reached > done:
                due.append(GlobalCommit(sink, reached, None))
        return tuple(due)

    def visible(self) -> tuple[tuple[str, int], ...]:
        """(sink, checkpoint): all up to this checkpoint is visible, of sinks with a global committer."""
        through = ((sink, self._through[sink_key(sink, GLOBAL_COMMITTER)]) for sink in self._global_sinks)
        return tuple((sink, checkpoint) for sink, checkpoint in through if checkpoint)

    def _close(self) -> None:
        """Forget the checkpoints which every sink is through."""
        through = min((each for key, each in self._through.items() if key not in self._held_members), default=None)
        while self._open and (through is None or self._open[0][0] <= through):
            self._open.popleft()

    def _advance(self, sink: str, checkpoint: int) -> None:
        if sink in self._through and checkpoint > self._through[sink]:
            self._through[sink] = checkpoint
            self.last_through = sink
            if sink in self._held_members:
                self._held.committed(self._held_members[sink], checkpoint)
            self._close()
            trouble = self._failing.get(sink)
            if trouble is not None and trouble.checkpoint <= checkpoint:
                del self._failing[sink]


def _value_bytes(snapshot: OperatorSnapshot) -> int:
    return sum(map(len, snapshot.values.values())) + sum(ref.size for ref in snapshot.objects.values())
