"""Progress of every sink's commits, and due global commits. Pure: facts and `now` in.

A sink subtask commits a part when a checkpoint is complete. With a *global committer*, parts stay invisible until all
subtasks have committed; slot 0 then makes all visible at once, and only then subtasks forget the transactions. See
docs/design/targets-and-committables.md.

    checkpoint n complete → every subtask Committed(n) → CommitGlobally(n) to slot 0 → Committed(n, global) → Visible(n)

A job is finished only when all commits are done (I10). A successor reconstructs the state from log, manifest and
messages.

**Failing commits** are stored in the job's history, because a successor hears of a failure only with the next attempt,
up to half a minute later.

| report about a checkpoint of a sink's subtask | no failure known | a failure known |
|---|---|---|
| an attempt failed, and the checkpoint is invisible | known, since now | known since then, with the newest reason |
| a predecessor stored a failure, and the checkpoint is invisible | known, since then | unchanged |
| the checkpoint is visible (also if a returning slot reports that) | none | removed |
| an earlier checkpoint is visible | none | unchanged |
| another number of slots, another program | none | removed: everything before was visible |

**Held commits.** A sink with `commit_every` holds back global commits, so that a lakehouse table gets one commit for
all checkpoints of that time. Subtasks commit parts with each checkpoint; manifests list everything invisible.

| a sink with `commit_every` | global committer |
|---|---|
| a checkpoint completes before `commit_every` is over | waits; the checkpoint does not count as behind |
| `commit_every` has passed since a commit was last due | is due, up to the newest completed checkpoint |
| no commit was due in this process yet | is due with the first checkpoint |
| a stop, drain, savepoint, rescale, replace, end of input or too many bytes are pending | is due |
| a new generation of the same process | keeps the rhythm |
| a commit is due and not done | counts as one checkpoint behind |
| … and the next commit becomes due, too | each checkpoint of that commit counts as well |
| the clock was set back | waits for `commit_every` from then on |

Another process (a start, a takeover) begins with a commit of the decided checkpoints: a crash loop makes at most one
commit per start.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
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

HOLD_BYTES = 1 << 20  # pending bytes of held sinks, which every checkpoint stores; above: commit at once


@dataclass(frozen=True)
class DueCommit:
    """A commit up to `checkpoint`, due since `since_ms`; `count` checkpoints were held back."""

    checkpoint: int
    since_ms: int
    count: int


@dataclass
class _Held:
    every_ms: int
    last_ms: int | None = None  # when a commit was last due
    newest: int = 0
    count: int = 0
    open: deque[DueCommit] = field(default_factory=deque)  # due and not done, oldest first


class HeldCommits:
    """Due commits of sinks with `commit_every`. `every_ms`: by sink; 0: with each checkpoint."""

    def __init__(self, every_ms: Mapping[str, int]) -> None:
        self._sinks = {sink: _Held(each) for sink, each in every_ms.items() if each > 0}

    def __contains__(self, sink: str) -> bool:
        return sink in self._sinks

    def completed(self) -> None:
        for held in self._sinks.values():
            held.count += 1

    def look(self, sink: str, completed: int, through: int, now_ms: int, *, at_once: bool) -> None:
        """Decides whether `sink`, committed up to `through`, is due. `completed`: the newest checkpoint."""
        held = self._sinks[sink]
        if held.last_ms is not None and held.last_ms > now_ms:
            held.last_ms = now_ms
        if completed <= max(held.newest, through):
            return
        if at_once or held.last_ms is None or now_ms - held.last_ms >= held.every_ms:
            held.open.append(DueCommit(completed, now_ms, held.count))
            held.newest, held.last_ms, held.count = completed, now_ms, 0

    def next_ms(self, completed: int, through: Mapping[str, int]) -> int | None:
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
        due = self._sinks[sink].open
        return due[0] if due else None

    @property
    def behind(self) -> int:
        """Number of late checkpoints, of the sink with the most."""
        counts = (1 + sum(each.count for each in list(held.open)[1:]) for held in self._sinks.values() if held.open)
        return max(counts, default=0)


_DECIDED_KEPT = 16  # decided manifests
NOTE_AGAIN_MS = 10_000
MAX_PENDING_BYTES = 32 << 20  # of all sinks, because every checkpoint stores them


@dataclass(frozen=True)
class FailingCommit:
    sink: str
    checkpoint: int
    attempts: int
    error: str
    since_ms: int = 0  # time of the first failed attempt; 0: unknown
    noted_ms: int = 0  # time of the first attempt, or of the last stored reason


@dataclass(frozen=True)
class GlobalCommit:
    """A due commit of `sink` up to `checkpoint`.

    `part`: the sink's part of the manifest, or the manifest's place if the part is too large for a message. None: read
    the manifest first.
    """

    sink: str
    checkpoint: int
    part: tuple[OperatorSnapshot, ...] | ManifestRef | None


@dataclass
class _Lowest:
    """Lowest checkpoint that a sink's subtasks have committed; `there`: number of subtasks at that checkpoint."""

    checkpoint: int
    there: int


@dataclass(frozen=True)
class _Decided:
    parts: dict[str, tuple[OperatorSnapshot, ...] | ManifestRef]
    in_store: bool  # some parts


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
        self._subtasks = {sink_key(sink, subtask): sink for sink, subtask in members if subtask != GLOBAL_COMMITTER}
        self._lowest = {sink: _Lowest(0, spec.parallelism) for sink in self._subtasks.values()}
        self._committers = {sink_key(sink, GLOBAL_COMMITTER): sink for sink in self._global_sinks}
        every_ms = {sink: each for chain in spec.chains for sink, each in chain.commit_every_ms.items()}
        self._held = HeldCommits({sink: every_ms.get(sink, 0) for sink in self._global_sinks})
        self._held_members = {member: sink for member, sink in self._committers.items() if sink in self._held}
        self.last_through = ""
        self._failing: dict[str, FailingCommit] = {}
        # (checkpoint, time of the decision) of uncommitted checkpoints, oldest first, except held commits.
        self._open: deque[tuple[int, int]] = deque()
        self._decided: dict[int, _Decided] = {}  # checkpoint -> parts of the global sinks in the manifest
        self._due: dict[str, int] = {}  # sink -> the checkpoint that was due last; the commit may be in progress
        self._sinks = frozenset(sink for chain in spec.chains for sink in chain.sinks)
        self._held_bytes = 0  # of `_pending_bytes`
        self._newest = 0  # newest checkpoint whose manifest was seen
        self._pending_bytes = 0

    def committed(self, message: Committed) -> None:
        self._advance(sink_key(message.operator, message.subtask), message.checkpoint)

    def reconcile(self, slot: int, committed: dict[str, int]) -> None:
        """Takes a (re)connected slot's report about the sinks of the slot."""
        own = (slot, GLOBAL_COMMITTER) if slot == 0 else (slot,)
        for sink, checkpoint in committed.items():
            if sink.endswith(tuple(sink_key("", subtask) for subtask in own)):
                self._advance(sink, checkpoint)

    def settled(self, checkpoint: int) -> None:
        """Records that an earlier run made everything up to `checkpoint` visible."""
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
        """Takes failures that a predecessor stored."""
        for trouble in troubles:
            if trouble.checkpoint > self._through.get(trouble.sink, trouble.checkpoint):
                self._failing.setdefault(trouble.sink, trouble)

    def all_through(self, checkpoint: int) -> bool:
        return all(through >= checkpoint for through in self._lowest_of(self._committers))

    def _lowest_of(self, committers: Iterable[str]) -> Iterator[int]:
        """Lowest committed checkpoint of each sink's subtasks, and those of `committers`."""
        yield from (lowest.checkpoint for lowest in self._lowest.values())
        yield from (self._through[member] for member in committers)

    def completed(self, checkpoint: int, now_ms: int) -> None:
        """Records `checkpoint` as complete, until every sink has committed it."""
        self._open.append((checkpoint, now_ms))
        self._held.completed()
        self._close()

    def look(self, completed: int, now_ms: int, *, at_once: bool) -> None:
        """Decides which held global commits are due. `at_once`: all."""
        for member, sink in self._held_members.items():
            now = at_once or self._held_bytes > HOLD_BYTES
            self._held.look(sink, completed, self._through[member], now_ms, at_once=now)

    def next_due_ms(self, completed: int) -> int | None:
        through = {sink: self._through[member] for member, sink in self._held_members.items()}
        return self._held.next_ms(completed, through)

    @property
    def too_far_behind(self) -> str:
        """Reason why no more checkpoints are taken; "" if none.

        A snapshot lists all invisible transactions: further checkpoints would only lengthen the list.
        """
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
        """Returns the oldest uncommitted checkpoint of each sink, except sinks in `troubles`."""
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
        """Returns sink subtasks and global committers without a commit of `checkpoint`, except held ones."""
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
        """Opaque version of the failures for the history.

        Changes when a failure begins or ends. Another reason counts once in `NOTE_AGAIN_MS`, because reasons may
        contain times.
        """
        return frozenset((each.sink, each.since_ms, each.noted_ms) for each in self._failing.values())

    def decided(self, checkpoint: int, operators: tuple[OperatorSnapshot, ...], manifest: ManifestRef) -> None:
        """Keeps the part of a decided manifest that global committers need."""
        self._newest = checkpoint
        operators = tuple(without_own(each) for each in operators)  # a subtask's own rows are not committed yet
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
        """Checkpoints whose manifest and files a global committer may still read."""
        if not self._global_sinks:
            return frozenset()
        done = min(self._through[sink_key(sink, GLOBAL_COMMITTER)] for sink in self._global_sinks)
        return frozenset(number for number, each in self._decided.items() if each.in_store and number > done)

    def _forget(self) -> None:
        """Forgets decisions that every global committer has committed, and superfluous ones.

        A lagging sink needs the oldest first; the decision of a running commit stays, too. The others may go, because a
        manifest lists everything invisible.
        """
        done = min(self._through[sink_key(sink, GLOBAL_COMMITTER)] for sink in self._global_sinks)
        for old in [number for number in self._decided if number <= done and number != max(self._decided)]:
            del self._decided[old]
        kept = sorted(self._decided.keys() - self._due.values())
        if len(kept) > _DECIDED_KEPT:
            del self._decided[kept[len(kept) // 2]]

    def due_globally(self) -> tuple[GlobalCommit, ...]:
        """Returns, per sink, the newest commit that the global committer can make and has not made.

        `look` holds back some. Parts of a returned commit are kept until a newer commit is due.
        """
        due = []
        for sink in self._global_sinks:
            reached = self._lowest[sink].checkpoint
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
        """Returns (sink, checkpoint) per global committer: all up to the checkpoint is visible."""
        through = ((sink, self._through[sink_key(sink, GLOBAL_COMMITTER)]) for sink in self._global_sinks)
        return tuple((sink, checkpoint) for sink, checkpoint in through if checkpoint)

    def _close(self) -> None:
        through = min(self._lowest_of(self._committers.keys() - self._held_members.keys()), default=None)
        while self._open and (through is None or self._open[0][0] <= through):
            self._open.popleft()

    def _advance(self, sink: str, checkpoint: int) -> None:
        if sink in self._through and checkpoint > self._through[sink]:
            before, self._through[sink] = self._through[sink], checkpoint
            if sink in self._subtasks:
                self._rise(self._subtasks[sink], before)
            self.last_through = sink
            if sink in self._held_members:
                self._held.committed(self._held_members[sink], checkpoint)
            self._close()
            trouble = self._failing.get(sink)
            if trouble is not None and trouble.checkpoint <= checkpoint:
                del self._failing[sink]

    def _rise(self, sink: str, before: int) -> None:
        """Follows a subtask that was at `before`; looks at all subtasks only when none is left at the lowest."""
        lowest = self._lowest[sink]
        lowest.there -= before == lowest.checkpoint
        if not lowest.there:
            all_of_sink = [self._through[sink_key(sink, subtask)] for subtask in range(self._parallelism)]
            lowest.checkpoint = min(all_of_sink)
            lowest.there = all_of_sink.count(lowest.checkpoint)


def _value_bytes(snapshot: OperatorSnapshot) -> int:
    return sum(map(len, snapshot.values.values())) + sum(ref.size for ref in snapshot.objects.values())
