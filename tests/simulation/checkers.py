"""Checkers of the simulation: a class per invariant that holds whatever fails. No checker trusts the runtime.

A checker hears every effect on the stores and every change that readers see, in order, and reports a violation at once.
`canaries.py` proves that each checker can fail.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
from facts import Decision, Facts
from workload import NOT_KNOWN, Row, Workload, transfer

from barrier_runtime.coordinator.log.manifest import manifest_data, own_files
from barrier_runtime.coordinator.log.records import (
    NO_RECORD,
    Complete,
    Fence,
    Finish,
    Lead,
    Record,
    base_of,
    decode_record,
    is_milestone,
)
from barrier_runtime.coordinator.log.savepoint import Savepoint
from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.versioned import sha256_hex

Report = Callable[[str, str], None]  # (checker, violation)


class Checker:
    """Base class: hears everything, checks nothing."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        self.facts = facts
        self.workload = workload
        self._report = report

    def wrong(self, what: str) -> None:
        self._report(type(self).__name__, what)

    # effects on the checkpoint store, before `facts` hears of them
    def on_put(self, actor: str, key: str, data: bytes, read: Callable[[str], bytes | None]) -> None:
        """`actor` wrote `key`. `read` returns the current content of the store."""

    def on_delete(self, actor: str, key: str) -> None: ...

    def on_log_put_answered(self, actor: str, position: int, outcome: PutOutcome) -> None:
        """The store answered the put of `actor`."""

    def on_log_get_answered(self, actor: str, position: int, there: bool | None) -> None:
        """The store answered the get of `actor`. `there`: the record exists; None after an error."""

    def on_request(self, actor: str, operation: str, key: str) -> None:
        """`actor` begins a call on the checkpoint store."""

    def on_trigger(self, slot: str, token: int, checkpoint: int, triggered_ms: int) -> None:
        """The process of a slot received a trigger. A repeated trigger has the same time."""

    # after `facts` has heard of them
    def on_read(self, token: int, split: str, rows: int) -> None:
        """A slot of generation `token` has read `rows` rows of `split` since the job began."""

    def on_record(self, position: int, record: Record) -> None: ...

    def on_decision(self, decision: Decision) -> None: ...

    # changes that readers see
    def on_published(self, name: str) -> None:
        """A file appeared under the final name."""

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        """Readers of `sink` see `rows`, in this order, from now on. `checkpoint`: 0 if the sink reports none."""

    def on_savepoint(self, savepoint: Savepoint, read: Callable[[str], bytes]) -> None:
        """The savepoint has just been written. `read` returns an object of its folder."""

    def at_end(self, expected_all: bool) -> None:
        """The run is over. `expected_all`: the job has read all input and is finished."""


HOOKS = tuple(name for name in vars(Checker) if name.startswith("on_"))


class ContiguousLog(Checker):
    """I1: log positions are contiguous and immutable, from the base on.

    Below the base that the log names, compaction deletes records; FENCE, LEAD, milestones and kept decisions stay."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._bytes: dict[int, bytes] = {}
        self._deleted: set[int] = set()
        self._base = 1

    def on_put(self, actor: str, key: str, data: bytes, read: Callable[[str], bytes | None]) -> None:
        position = self.facts.position_of(key)
        if position is None:
            return
        if position in self._deleted:  # a stalled process filled a gap, which nobody reads
            self._deleted.discard(position)
            if data != self._bytes[position] and not isinstance(decode_record(key, data), Fence | Lead):
                self.wrong(f"{actor} put another record than the deleted log record {position}, and no FENCE or LEAD")
            return
        if position in self._bytes:
            if self._bytes[position] != data:
                self.wrong(f"{actor} replaced log record {position}")
        elif position != len(self._bytes) + 1:
            self.wrong(f"{actor} wrote log record {position}, the head is {len(self._bytes)}")
        elif (
            position > 1
            and f'"parent_sha256":"{hashlib.sha256(self._bytes[position - 1]).hexdigest()}"'.encode() not in data
        ):
            self.wrong(f"log record {position} does not follow the bytes of {position - 1}")
        self._bytes[position] = data

    def on_delete(self, actor: str, key: str) -> None:
        position = self.facts.position_of(key)
        if position is None:
            return
        record = self.facts.records[position - 1]
        kept = {decision.position for decision in self.facts.retained()}
        if position >= self._base or is_milestone(position) or position in kept or isinstance(record, Fence | Lead):
            self.wrong(f"{actor} deleted log record {key}, the base is {self._base}, kept are {sorted(kept)}")
        self._deleted.add(position)

    def on_record(self, position: int, record: Record) -> None:
        self._base = max(self._base, base_of(record))


class WholeManifests(Checker):
    """I2: a COMPLETE names a manifest whose every file existed with the listed hash before the put."""

    def on_put(self, actor: str, key: str, data: bytes, read: Callable[[str], bytes | None]) -> None:
        if self.facts.position_of(key) is None or b'"kind":"COMPLETE"' not in data:
            return
        record = decode_record(key, data)
        assert isinstance(record, Complete)
        manifest = manifest_data(record, read)
        if manifest is None or hashlib.sha256(manifest).hexdigest() != record.sha256:
            self.wrong(
                f"checkpoint {record.checkpoint} is decided, its manifest is {'gone' if manifest is None else 'other'}"
            )
            return
        from barrier_runtime.coordinator.log.manifest import decode_manifest

        for snapshot in decode_manifest(record.manifest, manifest).operators:
            for ref in snapshot.files:
                stored = ref.inline if ref.key is None else read(ref.key)
                if stored is None:
                    self.wrong(f"checkpoint {record.checkpoint} is decided without its file {ref.key}")
                    return
                found = hashlib.sha256(stored[ref.offset : ref.offset + ref.size]).hexdigest()
                if found != ref.sha256:
                    self.wrong(f"checkpoint {record.checkpoint}: {ref.name} in {ref.key} has other bytes than it says")


class RisingTokens(Checker):
    """I3: tokens never decrease along the log; a FENCE's token is its position; checkpoint ids only rise."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._token = 0
        self._checkpoint = 0

    def on_record(self, position: int, record: Record) -> None:
        if record.token < self._token:
            self.wrong(f"log record {position} has token {record.token} after {self._token}")
        if isinstance(record, Fence) and record.token != position:
            self.wrong(f"the FENCE at {position} has token {record.token}")
        if not isinstance(record, Fence) and record.token != self._token:
            self.wrong(f"log record {position} of generation {record.token} stands in generation {self._token}")
        if isinstance(record, Complete):
            if record.checkpoint <= self._checkpoint:
                self.wrong(f"checkpoint {record.checkpoint} is decided after {self._checkpoint}")
            self._checkpoint = record.checkpoint
        self._token = record.token


class IdsAreUsedOnce(Checker):
    """I3: no slot hears of two checkpoints with the same id, whoever leads: acks would count for both."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._heard: dict[tuple[str, int], tuple[int, int]] = {}

    def on_trigger(self, slot: str, token: int, checkpoint: int, triggered_ms: int) -> None:
        before = self._heard.setdefault((slot, checkpoint), (token, triggered_ms))
        if before != (token, triggered_ms):
            self.wrong(
                f"{slot} hears of checkpoint {checkpoint} (generation {token}, {triggered_ms}), and had heard of "
                f"another one with that id (generation {before[0]}, {before[1]})"
            )


class OnlyDecidedIsVisible(Checker):
    """I4: a row is visible only if a completed checkpoint lists its transaction."""

    def on_published(self, name: str) -> None:
        if name not in self.facts.final_names:
            self.wrong(f"{name} is visible, no completed checkpoint lists it")

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        for committable in committables:
            if committable not in self.facts.committables:
                self.wrong(f"sink {sink} shows a transaction that no completed checkpoint lists: {committable!r}")


class NothingDoubled(Checker):
    """I5: no row is visible twice."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._seen: dict[str, set[tuple[str, int, int, int]]] = defaultdict(set)

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        seen = self._seen[sink]
        for row in rows:
            identity = (row.source, row.split, row.seq, row.leg)
            if identity in seen:
                self.wrong(f"sink {sink} shows {row} again")
            seen.add(identity)


class NothingLost(Checker):
    """I5, I10: all records that a finished job has read are visible; no record is skipped."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._seqs: dict[str, set[tuple[str, int, int, int]]] = defaultdict(set)

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        self._seqs[sink].update((row.source, row.split, row.seq, row.leg) for row in rows)

    def at_end(self, expected_all: bool) -> None:
        """Checks unfinished jobs, too: all records before a visible record are visible."""
        workload = self.workload
        for sink in workload.sinks:
            seen = self._seqs[sink]
            last = {
                (source, split): workload.count if expected_all else 0
                for source in workload.sources
                for split in range(workload.splits)
            }
            if not expected_all and self.facts.decisions:
                last.update(self.facts.decisions[-1].positions)
            if sink == "out" and not expected_all and self.facts.decisions:
                seen = seen | self.facts.decisions[-1].kept
            for (source, split), count in last.items():
                lost = [(seq, leg) for seq in range(count) for leg in (0, 1) if (source, split, seq, leg) not in seen]
                if lost:
                    self.wrong(f"sink {sink} lacks {len(lost)} rows of {source}-{split}, e.g. {lost[:3]}")


class SavepointsAreVisible(Checker):
    """A savepoint is a complete checkpoint with all files, without transactions; all its rows are visible."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._shown: dict[str, set[tuple[str, int, int, int]]] = defaultdict(set)

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        self._shown[sink].update((row.source, row.split, row.seq, row.leg) for row in rows)

    def on_savepoint(self, savepoint: Savepoint, read: Callable[[str], bytes]) -> None:
        taken = savepoint.taken
        what = f"the savepoint of checkpoint {taken.checkpoint}"
        decisions = [each for each in self.facts.decisions if each.record.checkpoint == taken.checkpoint]
        if not decisions or decisions[-1].record.token != taken.token:
            self.wrong(f"{what}, generation {taken.token}, is of none that is complete")
            return
        decision = decisions[-1]
        came = {(*split, seq, leg) for split, n in decision.positions.items() for seq in range(n) for leg in (0, 1)}
        for sink in self.workload.sinks:
            lacking = came - decision.not_shown(sink) - self._shown[sink]
            if lacking:
                self.wrong(f"{what} was written, but sink {sink} shows {len(lacking)} of its rows not yet")
        for snapshot in taken.operators:
            if snapshot.operator in self.workload.sinks and PENDING_VALUE in {*snapshot.values, *snapshot.objects}:
                self.wrong(f"{what} has transactions of sink {snapshot.operator}")
            for ref in snapshot.files:
                if ref.key is not None:
                    data = read(ref.key)[ref.offset : ref.offset + ref.size]
                    if sha256_hex(data) != ref.sha256:
                        self.wrong(f"{what} has other bytes in {ref.key} than the checkpoint had")


class NothingReordered(Checker):
    """I5: rows of a split for an account appear in the order of the split, and state saw them in that order.

    Rescaled jobs with a lookup or with growing files are exempt: rows in flight or in an open file, and rows that are
    read again, belong to two subtasks there."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._last: dict[tuple[str, str, int, int], Row] = {}

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        for row in rows:
            place = (sink, row.source, row.split, row.account)
            last = None if self._is_spread_anew else self._last.get(place)
            if last is not None and (row.seq <= last.seq or row.n <= last.n):
                self.wrong(f"sink {sink} shows {row} after {last}")
            self._last[place] = row

    @property
    def _is_spread_anew(self) -> bool:
        fences = (record for record in self.facts.records if isinstance(record, Fence))
        spreads = self.workload.completed is not None or self.workload.rolled
        return spreads and len({fence.spec.parallelism for fence in fences}) > 1


class WholeState(Checker):
    """Keyed state neither loses nor doubles an update.

    The legs of an account are numbered 1, 2, 3, …; each leg has the sum of the legs so far as balance, and names the
    first leg and the greatest leg so far. With a second shuffle the legs of each split are numbered, too."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._accounts: dict[tuple[str, int], dict[int, Row]] = defaultdict(dict)
        self._audits: dict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        for row in rows:
            legs = self._accounts[sink, row.account]
            if row.n in legs:
                self.wrong(f"sink {sink}: account {row.account} counted {row} and {legs[row.n]} with the same number")
            legs[row.n] = row
            if self.workload.audited:
                self._audits[sink, row.source, row.split][row.m] += 1

    def at_end(self, expected_all: bool) -> None:
        for (sink, account), legs in self._accounts.items():
            gap = next(n for n in range(1, len(legs) + 2) if n not in legs)
            missing = max(legs) - len(legs)
            if gap <= len(legs) and (expected_all or min(legs) < 1 or missing > self._not_shown(sink)[account]):
                self.wrong(f"sink {sink}: account {account} has no leg {gap} of {max(legs)}")
                continue
            balance, greatest = 0, legs.get(1)
            for n in range(1, gap):
                balance += legs[n].delta
                greatest = max(greatest, legs[n], key=lambda leg: leg.delta)  # in a tie the first stays
                if legs[n].balance != balance:
                    self.wrong(f"sink {sink}: account {account}: {legs[n]} should have balance {balance}")
                    break
                if legs[n].opened not in (NOT_KNOWN, legs[1].seq) or legs[n].peak not in (NOT_KNOWN, greatest.seq):
                    first = legs[1]
                    self.wrong(
                        f"sink {sink}: account {account}: {legs[n]}, whose first is {first}, greatest {greatest}"
                    )
                    break
        for (sink, source, split), numbers in self._audits.items():
            if sorted(numbers.elements()) != list(range(1, numbers.total() + 1)):
                self.wrong(f"sink {sink}: the legs of {source}-{split} are not numbered 1 to {max(numbers)}")

    def _not_shown(self, sink: str) -> Counter[int]:
        """Returns the number of legs per account that the last checkpoint has in flight or in open files.

        After a second shuffle such a leg may be older than visible legs of its account."""
        held = self.facts.decisions[-1].not_shown(sink) if self.facts.decisions else ()
        return Counter(transfer(source, split, seq)[leg] for source, split, seq, leg in held)


class OneCut(Checker):
    """I6: the visible rows always equal the source positions of a completed checkpoint, minus its rows in flight.

    Checked for sinks with a global committer, after every change. The sum of all visible deltas is 0."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._shown: set[tuple[str, int, int, int]] = set()
        self._rows: Counter[tuple[str, int]] = Counter()
        self._last: dict[tuple[str, int], int] = {}
        self._legs: Counter[int] = Counter()  # by account
        self._highest_n: dict[int, int] = {}
        self._sum = 0

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        if sink != "out" or not self.workload.whole:
            return
        for row in rows:
            split = (row.source, row.split)
            self._shown.add((row.source, row.split, row.seq, row.leg))
            self._rows[split] += 1
            self._last[split] = max(row.seq, self._last.get(split, -1))
            self._legs[row.account] += 1
            self._highest_n[row.account] = max(row.n, self._highest_n.get(row.account, 0))
            self._sum += row.delta
        decision = next((each for each in reversed(self.facts.decisions) if each.record.checkpoint == checkpoint), None)
        if decision is None:
            self.wrong(f"what is visible is said to be checkpoint {checkpoint}, which is not complete")
        elif decision.not_shown("out"):
            self._judge_with_in_flight(decision)
        else:
            self._judge_whole(decision)

    def _judge_whole(self, decision: Decision) -> None:
        for split, count in self._rows.items():
            if count != 2 * (self._last[split] + 1):
                self.wrong(f"{count} legs of {split} are visible, the last of transfer {self._last[split]}")
        if self._sum:
            self.wrong(f"the auditor finds {self._sum} too much")
        for account, highest in self._highest_n.items():
            if self._legs[account] != highest:
                self.wrong(f"{self._legs[account]} legs of account {account} are visible, the last is number {highest}")
        for split in sorted(decision.positions.keys() | self._last.keys()):
            position = decision.positions.get(split, 0)
            if position != self._last.get(split, -1) + 1:
                self.wrong(
                    f"checkpoint {decision.record.checkpoint} is visible; its position of {split} is {position}, shown "
                    f"are {self._last.get(split, -1) + 1} transfers"
                )

    def _judge_with_in_flight(self, decision: Decision) -> None:
        read = {
            (*split, seq, leg)
            for split, position in decision.positions.items()
            for seq in range(position)
            for leg in (0, 1)
        }
        not_shown = decision.not_shown("out")
        for what, wrong in (
            ("neither visible nor in flight", read - self._shown - not_shown),
            ("visible and in flight", self._shown & not_shown),
            ("visible or in flight, and not read", (self._shown | not_shown) - read),
        ):
            if wrong:
                self.wrong(
                    f"checkpoint {decision.record.checkpoint}: {len(wrong)} rows are {what}: {sorted(wrong)[:3]}"
                )


class OnlyReadIsVisible(Checker):
    """I4: a row is visible, in any target, only if a decided checkpoint covers the row and not as in flight."""

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        last = self.facts.decisions[-1] if self.facts.decisions else None
        positions = {} if last is None else last.positions
        for row in rows:
            if row.seq >= positions.get((row.source, row.split), 0):
                self.wrong(f"sink {sink} shows {row}, which no completed checkpoint covers")
            elif last is not None and (row.source, row.split, row.seq, row.leg) in last.not_shown(sink):
                self.wrong(f"sink {sink} shows {row}, which checkpoint {last.record.checkpoint} has in flight")


class MessagesOnce(Checker):
    """No message of a queue is visible twice.

    The world calls `judge` once all is calm, to check that no early acknowledgement has lost a message."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self.shown: Counter[tuple[int, int]] = Counter()  # (message, leg)

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        for row in rows:
            self.shown[row.seq, row.leg] += 1
            if self.shown[row.seq, row.leg] > 1:
                self.wrong(f"sink {sink} shows message {row.seq} again: {row}")

    def lost(self, numbers: Iterable[int]) -> list[int]:
        return sorted(number for number in numbers if not (self.shown[number, 0] and self.shown[number, 1]))

    def judge(self, published: int, acknowledged: Iterable[int], state: str) -> None:
        """Checks that all messages are visible, after they had time to become visible."""
        lost = self.lost(range(published))
        if lost:
            early = self.lost(acknowledged)
            self.wrong(f"messages {lost} did not come out, of which {early} were acknowledged: {state}")


class NothingNeededIsDeleted(Checker):
    """I7: nothing that a retained manifest reaches is deleted, and only a coordinator deletes.

    Of an unfenced generation no object is deleted that a later decision names, nor an upload whose loss made the
    coordinator refuse a checkpoint."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._given_up: set[str] = set()  # deleted while their generation lived, named by no decision
        self._refused: set[int] = set()

    def on_put(self, actor: str, key: str, data: bytes, read: Callable[[str], bytes | None]) -> None:
        if key != self.facts.paths.history:
            return
        for each in decode_history(key, data).history:
            if "already deleted" in each.reason and each.checkpoint not in self._refused:
                self._refused.add(each.checkpoint)
                self.wrong(f"checkpoint {each.checkpoint} of the living generation lost an upload: {each.reason}")

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Complete) and record.manifest in self._given_up:
            self.wrong(f"{record.manifest} of the living generation was deleted before its decision")

    def on_decision(self, decision: Decision) -> None:
        for key in sorted(decision.files & self._given_up):
            self.wrong(f"{key} of the living generation was deleted: an upload under way")

    def on_delete(self, actor: str, key: str) -> None:
        facts = self.facts
        if not actor.startswith("coordinator"):
            if key.startswith((facts.paths.data_prefix, facts.paths.checkpoints_prefix, facts.paths.log_prefix)):
                self.wrong(f"{actor} deleted {key}: tasks never delete what checkpoints are made of")
            return
        for decision in facts.retained():
            if key == decision.record.manifest or key in decision.files:
                self.wrong(f"{actor} deleted {key}, which retained checkpoint {decision.record.checkpoint} needs")
        manifest = facts.paths.checkpoint_of(key)
        token = manifest[1] if manifest is not None else facts.paths.data_token(key)
        if token is None or token < facts.token or key in facts.files or key in facts.manifests:
            return
        if token > facts.token:
            self.wrong(f"{actor} deleted {key} of generation {token}, which the log does not know: an upload under way")
        self._given_up.add(key)


class DroppedStaysDropped(Checker):
    """A dropped checkpoint is neither restored nor kept again, whatever log records still exist.

    The newest decision is always kept."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._kept: frozenset[int] | None = None  # None: the log does not list what is kept
        self._newest = NO_RECORD

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Finish) and record.discarded:
            self._kept, self._newest = frozenset(), NO_RECORD
        if not isinstance(record, Fence | Complete):
            return
        before, own = self._kept, set()
        self._kept = None if record.version < 3 else frozenset(record.kept)
        if isinstance(record, Complete):
            own, self._newest = {position}, position
            self._kept = None if self._kept is None else self._kept | own
        elif before is not None and record.restored_position not in (NO_RECORD, *before):
            self.wrong(f"generation {position} restores checkpoint {record.restored_checkpoint}, which was dropped")
        if self._kept is None:
            return
        if before is not None and self._kept - before - own:
            self.wrong(f"log record {position} keeps {min(self._kept - before - own)}, which was dropped")
        if self._newest not in (NO_RECORD, *self._kept):
            self.wrong(f"log record {position} drops {self._newest}, the newest decision")


class AcksOfThisGeneration(Checker):
    """I8: an ack counts only for the current token.

    A manifest consists of files of the same generation and of files that an earlier decision confirmed."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._confirmed: set[str] = set()

    def on_decision(self, decision: Decision) -> None:
        token = decision.manifest.token
        new = decision.files - self._confirmed
        self._confirmed |= new
        for key in new:
            written = self.facts.paths.data_token(key)
            if written != token:
                self.wrong(
                    f"checkpoint {decision.record.checkpoint} of generation {token} holds {key} of generation {written}"
                )
        said = (decision.record.checkpoint, decision.record.lineage)
        if (decision.manifest.checkpoint, decision.manifest.lineage) != said:
            self.wrong(f"the decision of checkpoint {said} names a manifest of {decision.manifest.checkpoint}")
        if decision.record.token != token:
            self.wrong(f"the decision of generation {decision.record.token} names a manifest of {token}")


class UnknownBlocks(Checker):
    """I9: while the outcome of its log put is unknown, a coordinator decides and deletes nothing."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._unknown: dict[str, int] = {}

    def on_log_put_answered(self, actor: str, position: int, outcome: PutOutcome) -> None:
        if outcome is PutOutcome.UNKNOWN:
            self._unknown[actor] = position
        elif outcome is PutOutcome.CREATED or outcome is PutOutcome.EXISTS:
            self._unknown.pop(actor, None)

    def on_request(self, actor: str, operation: str, key: str) -> None:
        unknown = self._unknown.get(actor)
        if unknown is None:
            return
        position = self.facts.position_of(key)
        if operation == "put_if_absent" and position is not None and position != unknown:
            self.wrong(f"{actor} puts log record {position} while {unknown} is undecided")
        elif operation == "delete" and key.startswith(
            (self.facts.paths.data_prefix, self.facts.paths.checkpoints_prefix)
        ):
            self.wrong(f"{actor} deletes {key} while log record {unknown} is undecided")


class FinishedMeansCommitted(Checker):
    """I10: finished ⇒ all committed, in every sink."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._visible: Counter[str] = Counter()

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        self._visible[sink] += len(rows)

    def on_record(self, position: int, record: Record) -> None:
        if not isinstance(record, Finish) or record.outcome != "finished" or not self.workload.bounded:
            return  # an unbounded job was drained: `at_end` of other checkers compares the job's rows
        for sink in self.workload.sinks:
            if self._visible[sink] != 2 * self.workload.transfers:
                rows = 2 * self.workload.transfers
                self.wrong(f"the log says finished, sink {sink} shows {self._visible[sink]} of {rows} rows")


class TrueRows(Checker):
    """I5: every row is the result of the workload for a record of the source."""

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        workload = self.workload
        for row in rows:
            payer, payee, amount = transfer(row.source, row.split, row.seq)
            true = ((payer, -amount), (payee, amount))
            exists = row.source in workload.sources and row.split < workload.splits and row.seq < workload.count
            if not exists or row.leg not in (0, 1) or (row.account, row.delta) != true[row.leg]:
                self.wrong(f"sink {sink} shows {row}, which no record gives")


class OneLeader(Checker):
    """Only the process that fenced or leads a generation writes its records: a zombie never decides."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._leader = ""

    def on_record(self, position: int, record: Record) -> None:
        writer = record.put_id.rpartition("-")[0]
        if isinstance(record, Fence | Lead):
            self._leader = writer
        elif writer.removesuffix("-end") != self._leader:  # the leader also writes the FINISH of a broken job
            self.wrong(f"log record {position} is of {writer}, the generation is led by {self._leader}")


class NoBugIsReported(Checker):
    """No generation ends because a part of the runtime found that another part broke the protocol."""

    def on_record(self, position: int, record: Record) -> None:
        reason = record.reason if isinstance(record, Fence | Finish) else ""
        for sign in ("ProtocolViolation", "file a bug", "AssertionError", "KeyError", "TypeError", "AttributeError"):
            if sign in reason:
                self.wrong(f"log record {position} tells of a bug: {reason}")


class FirstObjectFirst(Checker):
    """The first object of staged rows is deleted first: a repeated delivery then never reads a torn set."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._first_of: dict[str, str] = {}
        self._gone: set[str] = set()

    def on_decision(self, decision: Decision) -> None:
        for committable in decision.committables:
            keys = [each["key"] for each in msgspec.json.decode(committable).get("objects", ())]
            self._first_of.update((key, keys[0]) for key in keys[1:])

    def on_delete(self, actor: str, key: str) -> None:
        self._gone.add(key)
        first = self._first_of.get(key)
        if first is not None and first not in self._gone:
            self.wrong(f"{actor} deleted {key}, while {first}, the first object of the same decided rows, is there")


PROTOCOL_CHECKERS: tuple[type[Checker], ...] = (  # for every workload
    ContiguousLog,
    WholeManifests,
    RisingTokens,
    IdsAreUsedOnce,
    OnlyDecidedIsVisible,
    NothingNeededIsDeleted,
    DroppedStaysDropped,
    AcksOfThisGeneration,
    UnknownBlocks,
    OneLeader,
    NoBugIsReported,
    FirstObjectFirst,
)
BANK_CHECKERS: tuple[type[Checker], ...] = (
    NothingDoubled,
    NothingLost,
    SavepointsAreVisible,
    NothingReordered,
    WholeState,
    OneCut,
    FinishedMeansCommitted,
    TrueRows,
)
CHECKERS = (*PROTOCOL_CHECKERS, *BANK_CHECKERS)
QUEUE_CHECKERS = (*PROTOCOL_CHECKERS, MessagesOnce, WholeState, TrueRows)
TARGET_CHECKERS: tuple[type[Checker], ...] = (
    OnlyReadIsVisible,
)  # for the bank workload with the simulation's own targets

__all__ = ["CHECKERS", "PROTOCOL_CHECKERS", "QUEUE_CHECKERS", "TARGET_CHECKERS", "Checker", "own_files"]
