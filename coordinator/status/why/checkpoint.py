"""Explanation of a slow or failed checkpoint, with evidence and remedy, from the history. Pure.

A slow checkpoint took three times as long as those before, and at least 300 ms; or 10 s. The subtask that acknowledged
last is examined, because all others waited for that subtask:

| largest part            | cause          | when                                                                    |
|-------------------------|----------------|-------------------------------------------------------------------------|
| manifest and log record | `store`        | always                                                                  |
| any                     | `large_state`  | much more was uploaded than usual, and writing took a quarter           |
|                         | `skew`         | rows are spread much less evenly than usual, which keeps a slot busy    |
|                         | `starved`      | the slot got no processor nearly all the time until the snapshot        |
| writing                 | `precommit`    | most of that was an operator's own blocking work                        |
|                         | `store`        | most of that was the upload, of no more than usual                      |
| any other               | `starved`      | the slot's loop was ready to run most of the time, without a processor  |
|                         | `step`         | a step of a subtask took most of the time                               |
|                         | `stalled`      | a heartbeat was late in the slot itself                                 |
|                         | `partition`    | the slot was silent, or messages were late, without a stall             |
|                         | `skew`         | a busy subtask got far more rows than others of the chain               |
|                         | `server`       | an operator waited for a server                                         |
|                         | `backpressure` | a busy subtask, or senders that waited for that subtask                 |
|                         | `unclear`      | none of these: the reason lists the parts                               |
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from barrier_runtime.coordinator.status.health import CONNECTOR_REMEDY, in_seconds
from barrier_runtime.coordinator.status.status import ChainStatus, CheckpointStatus, SlotDuring, SubtaskPhases
from barrier_runtime.coordinator.status.why.reason import SKEWED_SOURCE_REMEDY, Reason, line_of
from barrier_runtime.state.texts import counted

CAUSES = (
    "store",
    "precommit",
    "large_state",
    "starved",
    "step",
    "partition",
    "stalled",
    "skew",
    "server",
    "backpressure",
    "unclear",
    "declined",
    "recovery",
    "ended",
    "subsumed",
)
"""Values of `Reason.cause` of a checkpoint; those after `unclear` only of a failed one."""

SLOW_MS = 300
SLOW_TIMES = 3
ALWAYS_SLOW_MS = 10_000
_COMPARED = 50
_MOST = 0.5  # of the time
_MUCH = 0.25  # of the time, for unusual work
_MUCH_STATE = 1 << 20
_NAMED = 4
_STARVED = 0.7  # of the time
_BECAME = 0.15  # above the usual share of the rows


def why_checkpoint(
    record: CheckpointStatus, history: Iterable[CheckpointStatus], chains: Iterable[ChainStatus] = ()
) -> Reason | None:
    """Earlier checkpoints of the job's `history` define the usual. `chains`: for names."""
    chains = tuple(chains)
    names = {chain.chain: " → ".join(chain.operators) for chain in chains}
    sources = frozenset(chain.chain for chain in chains if chain.is_source)
    before = usual_of(record, history)
    look = _Look(record, before, names, sources)
    if record.outcome == "complete":
        return look.slow() if record.duration_ms >= slow_above_ms(before) else None
    return look.failed()


def usual_of(record: CheckpointStatus, history: Iterable[CheckpointStatus]) -> list[CheckpointStatus]:
    """Returns checkpoints before `record`, to compare `record` with."""
    return [
        each
        for each in history
        if each.outcome == "complete" and each.checkpoint < record.checkpoint and each.parts and each.duration_ms >= 0
    ][-_COMPARED:]


def slow_above_ms(before: Sequence[CheckpointStatus]) -> float:
    """Duration (ms) from which a following checkpoint is slow."""
    usual_ms = median(each.duration_ms for each in before) if before else SLOW_MS
    return min(ALWAYS_SLOW_MS, max(SLOW_MS, SLOW_TIMES * usual_ms))


@dataclass(frozen=True)
class _Look:
    record: CheckpointStatus
    before: Sequence[CheckpointStatus]
    names: dict[int, str]
    sources: frozenset[int] = frozenset()

    def slow(self) -> Reason:
        record = self.record
        stored_ms = (record.persist_duration_ms or 0) + (record.decide_duration_ms or 0)
        if stored_ms >= _MOST * record.duration_ms or not record.subtasks:
            return self._slow_decision(stored_ms)
        last = record.subtasks[0]
        writing = max(record.subtasks, key=lambda each: each.async_ms)
        if self._much_state and writing.async_ms >= _MUCH * record.duration_ms:
            return self._large_state(writing)
        early = self._became_skewed(last) or self._no_processor()
        if early is not None:
            return early
        if last.async_ms >= _MOST * last.ack_ms:
            return self._slow_write(last) or self._delayed(last, "it wrote its state between rows")
        return self._delayed(last, _largest_part(last))

    def _slow_decision(self, stored_ms: int) -> Reason:
        record = self.record
        usual = self._usual(lambda each: (each.persist_duration_ms or 0) + (each.decide_duration_ms or 0))
        return Reason(
            "store",
            f"{self._took}, because the store took {_time(stored_ms)} for the manifest and the log record.",
            (
                f"manifest {_time(record.persist_duration_ms or 0)}, log record {_time(record.decide_duration_ms or 0)}"
                f"{_usually(usual)}",
                f"all subtasks had acknowledged after {_time(record.ack_duration_ms or 0)}",
            ),
            "look at the object store's own latency and throttling; a store nearer to the coordinator helps",
        )

    def _slow_write(self, last: SubtaskPhases) -> Reason | None:
        if last.precommit_ms >= _MOST * last.async_ms and last.precommit_ms >= last.upload_ms:
            usual = self._usual(lambda each: max((one.precommit_ms for one in each.subtasks), default=0.0))
            return Reason(
                "precommit",
                f"{self._took}, because the pre-commit of {last.slowest} took {_time(last.precommit_ms)} in slot "
                f"{last.subtask}.",
                (
                    f"subtask {self._name(last)} acknowledged last, after {_time(last.ack_ms)}{self._half_had}",
                    f"pre-commit {_time(last.precommit_ms)}{_usually(usual)}; state was written in "
                    f"{_time(last.upload_ms)}",
                ),
                f"look at the target of {last.slowest}: its load, locks and limits; smaller or more frequent "
                "checkpoints give it less at a time",
            )
        if last.upload_ms < _MOST * last.async_ms:
            return None
        return Reason(
            "store",
            f"{self._took}, because the store was slow: {_time(last.upload_ms)} for {_size(last.new_bytes)} of slot "
            f"{last.subtask}.",
            self._of_writing(last),
            "look at the object store's own latency and throttling, and at the network of this slot's machine",
        )

    @property
    def _much_state(self) -> bool:
        usual_bytes = self._usual(lambda each: each.new_bytes) or 0
        return self.record.new_bytes >= max(_MUCH_STATE, SLOW_TIMES * usual_bytes)

    def _large_state(self, writing: SubtaskPhases) -> Reason:
        return Reason(
            "large_state",
            f"{self._took}, because much more state had changed than usual: {_size(self.record.new_bytes)}.",
            self._of_writing(writing),
            f"look at what {writing.slowest} writes: many new keys, large values, a TTL or a window that ended for "
            "many keys at once; checkpoint more often, or give each slot less of it by more parallelism",
        )

    def _of_writing(self, writing: SubtaskPhases) -> tuple[str, ...]:
        usual_bytes = self._usual(lambda each: each.new_bytes)
        usually = "" if usual_bytes is None else f", usually {_size(usual_bytes)}"
        return (
            f"subtask {self._name(writing)} acknowledged after {_time(writing.ack_ms)}{self._half_had}; it wrote for "
            f"{_time(writing.async_ms)}",
            f"of that the upload of {writing.slowest} took {_time(writing.upload_ms)}, for {_size(writing.new_bytes)}",
            f"the whole checkpoint uploaded {_size(self.record.new_bytes)}{usually}",
        )

    def _delayed(self, last: SubtaskPhases, where: str) -> Reason:
        waited_ms = max(last.start_delay_ms + last.alignment_ms, last.ack_ms - last.precommit_ms - last.upload_ms)
        parts = f"subtask {self._name(last)} acknowledged last, after {_time(last.ack_ms)}{self._half_had}: {where}"
        for look in (self._starved, self._long_step, self._out_of_touch, self._skew, self._held, self._busy):
            reason = look(last, waited_ms, parts)
            if reason is not None:
                return reason
        return Reason(
            "unclear",
            f"{self._took}; subtask {self._name(last)} acknowledged last, and nothing that was recorded says why.",
            (parts, _parts(last)),
            "look at the slot's log and its machine at that time; send `barrier-runtime report` with a bug report",
        )

    def _starved(self, last: SubtaskPhases, waited_ms: float, parts: str) -> Reason | None:
        worst = max(self.record.subtasks, key=lambda each: each.starved_ms)
        usual = self._usual(lambda each: max((one.starved_ms for one in each.subtasks), default=0.0)) or 0.0
        if worst.starved_ms < _MOST * waited_ms or worst.starved_ms < SLOW_TIMES * usual:
            return None
        return Reason(
            "starved",
            f"{self._took}, because slot {worst.subtask} got no processor for {_time(worst.starved_ms)}.",
            (
                parts,
                f"its loop was ready to run for {_time(worst.starved_ms)} since its last snapshot{_usually(usual)}",
            ),
            "its machine has more work than processors: move other programs away, give executors fewer slots per core, "
            "or raise the container's CPU limit",
        )

    def _no_processor(self) -> Reason | None:
        """Explains a slot starved nearly until the snapshot, which also delays everything afterwards."""
        before = self.before[-1] if self.before else None
        worst = max(self.record.subtasks, key=lambda each: each.starved_ms)
        if before is None or worst.starved_ms < _MUCH * self.record.duration_ms:
            return None
        since_ms = self.record.triggered_ms - before.triggered_ms + worst.start_delay_ms + worst.alignment_ms
        if worst.starved_ms < _STARVED * since_ms:
            return None
        parts = f"it waited for a processor {worst.starved_ms / max(1.0, since_ms):.0%} of the time until its snapshot"
        return self._starved(worst, worst.starved_ms, parts)

    def _long_step(self, last: SubtaskPhases, waited_ms: float, parts: str) -> Reason | None:
        worst = max(self.record.subtasks, key=lambda each: each.step_ms)
        if worst.step_ms < _MOST * waited_ms:
            return None
        chain = self._chain(worst.step_chain)
        return Reason(
            "step",
            f"{self._took}, because {'reading or writing' if worst.step_reading else 'one step'} of {chain} kept slot "
            f"{worst.subtask} for {_time(worst.step_ms)}.",
            (
                parts,
                f"meanwhile slot {worst.subtask} took no trigger and no barrier: its subtasks share one loop",
            ),
            CONNECTOR_REMEDY
            if worst.step_reading
            else f"let functions of {chain} return sooner: give slow calls to `lookup`, which waits for many at once, "
            "or to a step of smaller batches; if the program has no function there, report the long step",
        )

    def _out_of_touch(self, last: SubtaskPhases, waited_ms: float, parts: str) -> Reason | None:
        seen = self._slots_by_trouble(_MOST * waited_ms)
        return self._stalled_or_cut_off(seen[0], f"{self._took}, because", (parts,)) if seen else None

    def _stalled_or_cut_off(self, seen: SlotDuring, begin: str, evidence: tuple[str, ...]) -> Reason:
        if seen.stalled_ms >= _MOST * max(seen.silent_ms, seen.late_ms):
            return Reason(
                "stalled",
                f"{begin} slot {seen.slot} stood still for {_time(seen.stalled_ms)}.",
                (
                    *evidence,
                    f"its heartbeat was {_time(seen.stalled_ms)} late in the slot itself; no step took as long",
                ),
                "look at its machine at that time: a paused container or virtual machine, swapping, a long collection "
                "of garbage",
            )
        seconds = _time(max(seen.silent_ms, seen.late_ms))
        return Reason(
            "partition",
            f"{begin} nothing came from slot {seen.slot} for {seconds}.",
            (
                *evidence,
                f"the coordinator heard nothing of slot {seen.slot} for {_time(seen.silent_ms)}"
                + (f"; its heartbeats were up to {_time(seen.late_ms)} under way" if seen.late_ms else "")
                + ", and the slot told of no stall",
            ),
            f"look at the network between slot {seen.slot} and the coordinator: partitions, full links, firewalls",
        )

    def _became_skewed(self, last: SubtaskPhases) -> Reason | None:
        for chain in dict.fromkeys(each.chain for each in self.record.subtasks):
            first = next(each for each in self.record.subtasks if each.chain == chain)
            where = f"subtask {self._name(last)} acknowledged last, after {_time(last.ack_ms)}{self._half_had}"
            reason = self._skew(first, last.ack_ms, where, became=True)
            if reason is not None:
                return reason
        return None

    def _usual_share(self, chain: int) -> float:
        shares = [
            max((one.rows for one in each.subtasks if one.chain == chain), default=0) / each.chain_rows[str(chain)]
            for each in self.before
            if each.chain_rows.get(str(chain))
        ]
        return median(shares) if len(shares) >= 3 else 1.0

    def _skew(self, last: SubtaskPhases, waited_ms: float, parts: str, became: bool = False) -> Reason | None:
        others = [each for each in self.record.subtasks if each.chain == last.chain]
        in_all = self.record.chain_rows.get(str(last.chain), 0)
        subtasks = self._parallelism
        if subtasks < 2 or in_all < 100 or not others:
            return None
        most = max(others, key=lambda each: each.rows)
        share, fair = most.rows / in_all, 1 / subtasks
        usual = self._usual_share(last.chain) + _BECAME if became else 0.0
        if share < max(usual, min(0.9, 1.6 * fair)) or most.busy_ms < _MUCH * waited_ms:
            return None
        if most.busy_ms < _MOST * max(each.busy_ms for each in others):
            return None
        return Reason(
            "skew",
            f"{self._took}, because subtask {most.subtask} of {self._chain(most.chain)} got {share:.0%} of the rows.",
            (
                parts,
                f"{most.rows:,} of {counted(in_all, 'row')} since the last checkpoint, where each of {subtasks} "
                f"subtasks would have {fair:.0%}; it was busy for {_time(most.busy_ms)}",
            ),
            SKEWED_SOURCE_REMEDY
            if most.chain in self.sources
            else "a few keys have most of the rows: add a column to the key and aggregate in two steps, or filter the "
            "keys that nobody needs",
        )

    def _held(self, last: SubtaskPhases, waited_ms: float, parts: str) -> Reason | None:
        worst = max(self.record.subtasks, key=lambda each: each.held_ms)
        if worst.held_ms < _MOST * waited_ms:
            return None
        return Reason(
            "server",
            f"{self._took}, because {self._chain(worst.chain)} waited {_time(worst.held_ms)} for a server.",
            (
                parts,
                f"an operator of it had no room for more requests for {_time(worst.held_ms)} in slot {worst.subtask}",
            ),
            "look at the server that this step asks or writes to; allow it more requests at once if it can take them",
        )

    def _busy(self, last: SubtaskPhases, waited_ms: float, parts: str) -> Reason | None:
        busiest = max(self.record.subtasks, key=lambda each: each.busy_ms - each.blocked_ms)
        blocked = max(self.record.subtasks, key=lambda each: each.blocked_ms)
        if max(busiest.busy_ms, blocked.blocked_ms) < _MOST * waited_ms:
            return None
        evidence = [parts, f"{self._name(busiest)} worked for {_time(busiest.busy_ms)} since its last snapshot"]
        if blocked.blocked_ms >= _MOST * waited_ms:
            evidence.append(f"{self._name(blocked)} waited {_time(blocked.blocked_ms)} for room in its receivers")
        return Reason(
            "backpressure",
            f"{self._took}, because its barriers waited behind rows: {self._chain(busiest.chain)} gets more than it "
            "can process.",
            tuple(evidence),
            f"make {self._chain(busiest.chain)} cheaper or raise the parallelism; `unaligned=True` lets barriers pass "
            "the rows meanwhile",
        )

    def failed(self) -> Reason:
        record = self.record
        if record.outcome == "subsumed":
            return Reason(
                "subsumed",
                f"Checkpoint {record.checkpoint} was not needed any more: {record.reason}.",
                (f"it was under way for {_time(record.duration_ms)}",),
                "nothing; with max_concurrent above 1 this is ordinary",
            )
        if record.outcome == "expired":
            return self._expired()
        if record.outcome == "declined":
            return Reason(
                "declined",
                f"Checkpoint {record.checkpoint} failed, because {_why(record.reason)}.",
                (f"it was declined after {_time(record.duration_ms)}",),
                "the message above says what the operator could not do; the next checkpoint tries again",
            )
        if record.reason.startswith("the job ended"):
            return Reason(
                "ended",
                f"Checkpoint {record.checkpoint} was dropped: {_why(record.reason)}.",
                (f"it was under way for {_time(record.duration_ms)}",),
                "nothing; what the last completed checkpoint covers is committed",
            )
        return Reason(
            "recovery",
            f"Checkpoint {record.checkpoint} failed, because the job restarted or it could not be stored: "
            f"{_why(record.reason)}.",
            (f"it was aborted after {_time(record.duration_ms)}{self._missing_at_end}",),
            "the job went on from the last completed checkpoint; cure what ended the generation",
        )

    def _expired(self) -> Reason:
        record = self.record
        begin = f"Checkpoint {record.checkpoint} timed out after {_time(record.duration_ms)}, because"
        evidence = (f"{len(record.missing)} of its subtasks had not acknowledged: {_some(record.missing)}",)
        missing_slots = {name.partition("/")[2] for name in record.missing}
        for seen in self._slots_by_trouble(_MUCH * record.duration_ms):
            if str(seen.slot) in missing_slots:
                return self._stalled_or_cut_off(seen, begin, evidence)
        if not record.missing:
            return Reason(
                "store",
                f"{begin} its manifest could not be stored in time.",
                ("all subtasks had acknowledged",),
                "look at the object store's own latency and errors",
            )
        last = record.subtasks[0] if record.subtasks else None
        if last is not None:
            for look in (self._long_step, self._skew, self._held, self._busy):
                reason = look(last, float(record.duration_ms) / 2, evidence[0])
                if reason is not None:
                    return reason
        chains = sorted({int(name.partition("/")[0]) for name in record.missing})
        return Reason(
            "backpressure",
            f"{begin} its barriers did not get through {self._chain(chains[0])} in time.",
            evidence,
            "rows before the barriers take longer than the timeout: make that step cheaper, raise the parallelism or "
            "checkpoint_timeout, or take checkpoints with `unaligned=True`",
        )

    @property
    def _took(self) -> str:
        usual = self._usual(lambda each: each.duration_ms)
        return f"Checkpoint {self.record.checkpoint} took {_time(self.record.duration_ms)}{_usually(usual)}"

    @property
    def _half_had(self) -> str:
        median_ms = self.record.median_ack_ms
        return "" if median_ms is None else f" (half of them within {_time(median_ms)})"

    @property
    def _missing_at_end(self) -> str:
        return f"; {_some(self.record.missing)} had not acknowledged" if self.record.missing else ""

    @property
    def _parallelism(self) -> int:
        return self.record.parts // max(1, len(self.record.chain_rows))

    def _usual(self, figure: Callable[[CheckpointStatus], float]) -> float | None:
        return median(map(figure, self.before)) if len(self.before) >= 3 else None

    def _slots_by_trouble(self, least_ms: float) -> list[SlotDuring]:
        trouble = {each: max(each.silent_ms, each.stalled_ms, each.late_ms) for each in self.record.slots}
        return sorted((each for each in trouble if trouble[each] >= least_ms), key=lambda each: -trouble[each])

    def _chain(self, chain: int) -> str:
        return f"`{self.names[chain]}`" if chain in self.names else f"chain {chain}"

    def _name(self, subtask: SubtaskPhases) -> str:
        return f"{self._chain(subtask.chain)}/{subtask.subtask}"


def _largest_part(last: SubtaskPhases) -> str:
    own_ms = last.start_delay_ms + last.alignment_ms + last.sync_ms + last.async_ms
    parts = {
        "its first barrier (or trigger) came late": last.start_delay_ms,
        "it waited for the barriers of its other inputs": last.alignment_ms,
        "it stood still to take its snapshot": last.sync_ms,
        "it wrote its state": last.async_ms,
        "its message was under way": last.ack_ms - own_ms,
    }
    name = max(parts, key=lambda each: parts[each])
    return f"{name} ({_time(parts[name])})"


def _parts(last: SubtaskPhases) -> str:
    return (
        f"start delay {_time(last.start_delay_ms)}, alignment {_time(last.alignment_ms)}, sync {_time(last.sync_ms)}, "
        f"async {_time(last.async_ms)} (pre-commit {_time(last.precommit_ms)}, upload {_time(last.upload_ms)})"
    )


def _time(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else in_seconds(round(ms))


def _usually(usual_ms: float | None) -> str:
    return "" if usual_ms is None else f" (usually {_time(usual_ms)})"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1_000
    raise AssertionError("there is a largest unit")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _why(reason: str) -> str:
    return line_of(reason) or "no reason was recorded"
