"""Progress of sinks' commits, and due global commits. Pure.

    checkpoint n complete → every subtask Committed(n) → CommitGlobally(n) to slot 0 → Committed(n, global) → Visible(n)

Design: docs/design/targets-and-committables.md.

A *failing commit* is known from the first failed attempt until the checkpoint is visible; a changed number of slots or
program removes the failure, because everything before was visible.

A sink with `commit_every` *holds* global commits. A commit up to the newest completed checkpoint is due when
`commit_every` has passed since a commit was last due, also in a new generation. A commit is due at once for this
process's first checkpoint (a crash loop commits once per start), a stop, drain, savepoint, rescale, replace or end of
input, and above `HOLD_BYTES`. A due commit counts as one checkpoint behind; if the next commit becomes due meanwhile,
each of its checkpoints counts as well.
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
from barrier_runtime.state.texts import counted

HOLD_BYTES = 1 << 20  # pending bytes of held sinks, which every checkpoint stores; above: commit at once


@dataclass(frozen=True)
class DueCommit:
    """`count`: checkpoints held back."""

    checkpoint: int
    since_ms: int
    count: int


@dataclass
class _Held:
    every_ms: int
    last_ms: int | None = None  # when a commit was last due
    newest: int = 0
    count: int = 0
    open: deque[DueCommit] = field(default_factory=deque)  # oldest first


class HeldCommits:
    """`every_ms`: by sink; 0: with each checkpoint."""

    def __init__(self, every_ms: Mapping[str, int]) -> None:
        self._sinks = {sink: _Held(each) for sink, each in every_ms.items() if each > 0}

    def __contains__(self, sink: str) -> bool:
        return sink in self._sinks

    def completed(self) -> None:
        for held in self._sinks.values():
            held.count += 1

    def look(self, sink: str, completed: int, through: int, now_ms: int, *, at_once: bool) -> None:
        """`through`: committed checkpoint; `completed`: newest checkpoint."""
        held = self._sinks[sink]
        if held.last_ms is not None and held.last_ms > now_ms:
            held.last_ms = now_ms  # the clock was set back
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
        """Late checkpoints of the sink with the most."""
        counts = (1 + sum(each.count for each in list(held.open)[1:]) for held in self._sinks.values() if held.open)
        return max(counts, default=0)


_DECIDED_KEPT = 16
NOTE_AGAIN_MS = 10_000
MAX_PENDING_BYTES = 32 << 20  # of all sinks, in every checkpoint


@dataclass(frozen=True)
class FailingCommit:
    sink: str
    checkpoint: int
    attempts: int
    error: str
    since_ms: int = 0  # of the first failed attempt; 0: unknown
    noted_ms: int = 0  # of the first attempt, or of the last stored reason


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
    """Lowest committed checkpoint of a sink's subtasks; `there`: number of subtasks there."""

    checkpoint: int
    there: int


@dataclass(frozen=True)
class _Decided:
    parts: dict[str, tuple[OperatorSnapshot, ...] | ManifestRef]
    in_store: bool  # a committer has to read the manifest or other objects


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
        self.last_through = ""  # member that committed last
        self._failing: dict[str, FailingCommit] = {}
        # (checkpoint, time of the decision) of uncommitted checkpoints, oldest first, without held commits.
        self._open: deque[tuple[int, int]] = deque()
        self._decided: dict[int, _Decided] = {}  # by checkpoint
        self._due: dict[str, int] = {}  # last due checkpoint by sink; the commit may be in progress
        self._sinks = frozenset(sink for chain in spec.chains for sink in chain.sinks)
        self._held_bytes = 0
        self._newest = 0  # checkpoint of the newest manifest
        self._pending_bytes = 0

    def committed(self, message: Committed) -> bool:
        """Returns whether the lowest commit of the sink's subtasks rose, or a global commit."""
        return self._advance(sink_key(message.operator, message.subtask), message.checkpoint)

    def reconcile(self, slot: int, committed: dict[str, int]) -> None:
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
        for trouble in troubles:
            if trouble.checkpoint > self._through.get(trouble.sink, trouble.checkpoint):
                self._failing.setdefault(trouble.sink, trouble)

    def all_through(self, checkpoint: int) -> bool:
        return all(through >= checkpoint for through in self._lowest_of(self._committers))

    def committed_by_all(self, newest: int) -> int:
        return min((newest, *self._lowest_of(self._committers)))

    def _lowest_of(self, committers: Iterable[str]) -> Iterator[int]:
        yield from (lowest.checkpoint for lowest in self._lowest.values())
        yield from (self._through[member] for member in committers)

    def completed(self, checkpoint: int, now_ms: int) -> None:
        self._open.append((checkpoint, now_ms))
        self._held.completed()
        self._close()

    def look(self, completed: int, now_ms: int, *, at_once: bool) -> None:
        for member, sink in self._held_members.items():
            now = at_once or self._held_bytes > HOLD_BYTES
            self._held.look(sink, completed, self._through[member], now_ms, at_once=now)

    def next_due_ms(self, completed: int) -> int | None:
        through = {sink: self._through[member] for member, sink in self._held_members.items()}
        return self._held.next_ms(completed, through)

    @property
    def too_far_behind(self) -> str:
        """Reason why no more checkpoints are taken; "" if none.

        Snapshots list all invisible transactions: more checkpoints would lengthen the list.
        """
        waiting = max(len(self._open), self._held.behind)
        if waiting >= self._max_behind:
            return (
                f"{counted(waiting, 'completed checkpoint')} not visible yet, {self._max_behind} are allowed "
                "(max_commits_behind)"
            )
        if self._pending_bytes > MAX_PENDING_BYTES and not self.all_through(self._newest):
            return (
                f"what sinks have to commit takes {self._pending_bytes:,} bytes of checkpoint {self._newest}, "
                f"{MAX_PENDING_BYTES:,} are allowed"
            )
        return ""

    def uncommitted(self) -> tuple[Uncommitted, ...]:
        """Oldest uncommitted checkpoint of each sink without a failing commit."""
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
        """Sink subtasks and global committers without a commit of `checkpoint`, except held commits."""
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
        """Opaque version of the failures for the history; a changed reason (perhaps with times) counts at
        most once in `NOTE_AGAIN_MS`.
        """
        return frozenset((each.sink, each.since_ms, each.noted_ms) for each in self._failing.values())

    def decided(self, checkpoint: int, operators: tuple[OperatorSnapshot, ...], manifest: ManifestRef) -> None:
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
        """Of too many decisions the middle one goes: a lagging sink needs the oldest first, a running commit
        its own, and each manifest lists everything invisible.
        """
        done = min(self._through[sink_key(sink, GLOBAL_COMMITTER)] for sink in self._global_sinks)
        for old in [number for number in self._decided if number <= done and number != max(self._decided)]:
            del self._decided[old]
        kept = sorted(self._decided.keys() - self._due.values())
        if len(kept) > _DECIDED_KEPT:
            del self._decided[kept[len(kept) // 2]]

    def due_globally(self) -> tuple[GlobalCommit, ...]:
        """Newest commit of each sink that the global committer can make."""
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
        through = ((sink, self._through[sink_key(sink, GLOBAL_COMMITTER)]) for sink in self._global_sinks)
        return tuple((sink, checkpoint) for sink, checkpoint in through if checkpoint)

    def _close(self) -> None:
        through = min(self._lowest_of(self._committers.keys() - self._held_members.keys()), default=None)
        while self._open and (through is None or self._open[0][0] <= through):
            self._open.popleft()

    def _advance(self, sink: str, checkpoint: int) -> bool:
        before = self._through.get(sink)
        if before is None or checkpoint <= before:
            return False
        self._through[sink] = checkpoint
        self.last_through = sink
        rose = sink not in self._subtasks or self._rise(self._subtasks[sink], before)
        if sink in self._held_members:
            self._held.committed(self._held_members[sink], checkpoint)
        if rose:
            self._close()
        trouble = self._failing.get(sink)
        if trouble is not None and trouble.checkpoint <= checkpoint:
            del self._failing[sink]
        return rose

    def _rise(self, sink: str, before: int) -> bool:
        lowest = self._lowest[sink]
        lowest.there -= before == lowest.checkpoint
        if lowest.there:
            return False
        all_of_sink = [self._through[sink_key(sink, subtask)] for subtask in range(self._parallelism)]
        lowest.checkpoint = min(all_of_sink)
        lowest.there = all_of_sink.count(lowest.checkpoint)
        return True


def _value_bytes(snapshot: OperatorSnapshot) -> int:
    return sum(map(len, snapshot.values.values())) + sum(ref.size for ref in snapshot.objects.values())
