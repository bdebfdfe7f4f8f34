"""Planted bugs that change source text (see `planting`), each with the story that has to find the bug.

Most are mutants of `tests/mutants`, which unit tests find as well."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from canaries import CANARIES, Canary
from planting import planted

from tests.mutants.catalogue import MUTANTS

_STORIES: dict[str, str] = {  # mutant -> the story that has to find the bug
    "moves-before-its-rows-are-visible": "bank",
    "any-program-has-the-key-groups": "bank",
    "watermark-is-not-restored": "events",
    "no-tombstones": "events",
    "idle-ends-time": "events",
    "timers-depend-on-cuts": "events",
    "windows-fire-twice-after-rescaling": "events",
    "merged-sessions-lose-accumulators": "events",
    "merged-cells-lose-one-side": "events",
    "sessions-are-looked-at-once": "events",
    "session-merge-loses-its-timer": "events",
    "slice-removed-one-window-too-early": "events",
    "window-lacks-a-slice": "events",
    "what-went-out-of-slices-is-not-restored": "events",
    "told-sessions-stay-when-they-are-none": "events",
    "restored-clock-begins-below-its-watermark": "events",
    "restored-clock-begins-below-a-floor": "events",
    "phases-of-a-count-forget-where-they-began": "events",
    "windows-go-as-they-fire": "events",
    "waiting-timers-leave-memory": "events",
    "timers-before-the-held-ones-are-lost": "events",
    "far-timers-wait-unseen": "events",
    "in-flight-tail-is-lost": "bank",
    "credit-goes-to-the-first-edge": "bank",
    "rows-reach-the-input-of-another-edge": "bank",
    "ended-subtasks-are-remembered": "bank",
    "permit-ignores-lead": "bank",
    "checkpoint-ids-are-used-again": "bank",
    "commit-log-forgets-names": "bank",
    "rolled-rows-stay-open": "bank",
    "moved-rows-wait": "bank",
    "dropped-files-go-at-once": "open",
    "sweep-forgets-dropped": "open",
    "list-loses-its-oldest-element": "events",
    "few-rows-go-astray": "bank",
    "few-sums-are-not-kept": "bank",
    "held-commits-are-never-due": "bank",
    "held-commits-count-as-behind": "bank",
    "held-commits-wait-at-a-stop": "bank",
    "held-checkpoints-are-forgotten-at-a-rescale": "bank",
    "packed-transactions-lose-the-oldest": "bank",
    "emitted-of-a-failing-call-stays": "sides",
    "sweep-takes-what-was-just-refreshed": "events",
    "latest-rows-are-held-over-a-barrier": "latest",
    "partial-rows-count-once": "latest",
    "partial-row-is-the-first-of-its-key": "latest",
    "rows-of-other-times-are-repeats": "events",
    "rows-under-way-are-lost": "lookups",
    "rows-that-went-out-are-restored": "lookups",
    "rows-under-way-go-to-all": "lookups",
    "matched-is-forgotten-at-a-restore": "joins",
    "newest-version-is-superseded": "joins",
    "version-dropped-too-early": "joins",
    "deleted-key-has-its-last-row": "joins",
    "older-version-of-a-deleted-key-comes-back": "joins",
}

_CHANGES: tuple[tuple[str, str, str | None, str, str, str], ...] = (  # name, the broken rule, story, file, old, new
    (
        "compaction-takes-fences",
        "a FENCE or LEAD below the base of the log is deleted",
        None,
        "coordinator/log/records.py",
        "    return not isinstance(record, Fence | Lead)\n",
        "    return True\n",
    ),
    (
        "timers-fire-though-deleted",
        "a timer that was deleted fires at its time",
        "events",
        "barrier_runtime/operators/keyed/timers.py",
        "        self._held[timer] = False\n        self._dead += 1\n",
        "",
    ),
    (
        "timer-fires-again-after-restore",
        "a timer that has fired stays in the store, and fires again after a restore",
        "events",
        "barrier_runtime/operators/keyed/timers.py",
        "            if self._held.pop(timer):\n                self._table.delete(timer)\n",
        "            if self._held.pop(timer):\n",
    ),
    (
        "wall-timer-fires-again-after-restore",
        "a wall-clock timer that was due when the job was restored stays where it was when it has fired",
        "events",
        "barrier_runtime/operators/keyed/wall_timers.py",
        "                if held:\n                    self._kill(timer)\n",
        "                if held:\n",
    ),
    (
        "row-in-all-windows-but-the-first",
        "a row is missing in the first of the windows that it belongs to",
        "events",
        "barrier_runtime/operators/windows/assigners.py",
        "(last[:, None] - self._back_ms).ravel()",
        "np.maximum(last[:, None] - self._back_ms, last[:, None] - self._back_ms[1]).ravel()",
    ),
    (
        "row-late-for-one-window-counts-in-none",
        "a row counts in those of its windows that are open, whichever are gone",
        "events",
        "barrier_runtime/operators/windows/sliding.py",
        "self._without_late(batch, None, slices, slices < first_open, emit)",
        "self._without_late(batch, None, slices, slices - self.window._back_ms[0] < first_open, emit)",
    ),
    (
        "segments-end-with-the-first-eviction",
        "an entry that has not changed since the last snapshot is in no later one once some have left memory",
        "events",
        "state/columns/column_table.py",
        "        self._rows.dirty |= self._rows.stored\n",
        "",
    ),
    (
        "evicted-window-begins-anew",
        "a row of a window that has left memory begins it anew: what was evicted is not in its result",
        "events",
        "state/columns/column_table.py",
        "        if not self._complete:\n            self.loaded += self._store.fill(rows, fresh)\n",
        "",
    ),
    (
        "evicted-changes-are-not-written",
        "a changed entry leaves memory before it is in the store",
        "events",
        "state/columns/column_table.py",
        "        dirty = row_ids[self._rows.dirty[row_ids]]\n",
        "        dirty = row_ids[:0]\n",
    ),
    (
        "removed-window-comes-back-from-the-store",
        "what was removed after it had come back is read once more, before the removal is written",
        "events",
        "state/columns/stored_entries.py",
        "            unknown &= rows.removed.index.find(key_batch) < 0\n",
        "            unknown &= rows.removed.index.find(key_batch) < len(rows.removed)\n",
    ),
    (
        "rows-on-disk-have-not-matched",
        "which rows of a run have matched is forgotten when it leaves memory",
        "joins",
        "barrier_runtime/operators/joins/stored_runs.py",
        "        self.on_disk = True\n",
        "        self.on_disk, self.matched = True, np.zeros(len(keys), np.bool_)\n",
    ),
    (
        "newest-first-recovery",
        "what a successor takes over is committed newest first: rows in the wrong order, a marker that goes back",
        "topic",
        "barrier_runtime/runtime/sinks/pending_set.py",
        "return tuple(sorted(mine, key=lambda entry: (entry.checkpoint, entry.subtask)))",
        "return tuple(sorted(mine, key=lambda entry: (-entry.checkpoint, entry.subtask)))",
    ),
    (
        "marker-apart-from-its-rows",
        "rows are committed in one transaction of Kafka, the marker that counts them in the next one",
        "topic",
        "barrier_runtime/connectors/kafka/sink/transactions.py",
        "        self._add_marker(lambda: producer.send_offsets_to_transaction([offset], "
        "group, offsets_s), offsets_s)\n",
        "        producer.send_offsets_to_transaction([], group, offsets_s)\n"
        "        producer.commit_transaction(timeout_s)\n"
        "        producer.begin_transaction()\n"
        "        self._add_marker(lambda: producer.send_offsets_to_transaction([offset], "
        "group, offsets_s), offsets_s)\n",
    ),
    (
        "first-staged-object-goes-last",
        "of staged rows that were delivered the first object is deleted last",
        "tokens",
        "barrier_runtime/connectors/sink_bases/write_ahead.py",
        "        store.delete([each.key for entry in entries for each in entry.objects[:1]])\n"
        "        rest = [each.key for entry in entries for each in entry.objects[1:]]\n"
        "        if rest:\n"
        "            store.delete(rest)\n",
        "        store.delete([each.key for entry in entries for each in entry.objects[1:]])\n"
        "        store.delete([each.key for entry in entries for each in entry.objects[:1]])\n",
    ),
    (
        "early-ack",
        "a queue's newest message is acknowledged, not the newest one that a decided checkpoint covers",
        "queue",
        "barrier_runtime/connectors/rabbitmq/source.py",
        "            self._consumer.acknowledge(last)\n",
        "            self._consumer.acknowledge(self._handed)\n",
    ),
    (
        "owner-tags-alike",
        "what two jobs of one name stage has one owner's tag: each drops the other's at its start",
        "twins",
        "barrier_runtime/connectors/sink_bases/staging.py",
        "owner = log_tag(log_id(context), context.job_store.url)",
        'owner = "0" * 16',
    ),
    (
        "hanging-open-not-told",
        "a job whose slots restore for ever is never said to be in trouble",
        "hanging",
        "coordinator/status/health.py",
        '                return "WAITING_RESTORE", facts.activity\n',
        '                return "RECOVERING", facts.activity\n',
    ),
    (
        "hanging-operator-not-named",
        "a slot does not tell which operator it has been opening",
        "hanging",
        "barrier_runtime/runtime/opening.py",
        "        return {name: now_s - since_s for name, since_s in opened_now}\n",
        "        return {name: now_s - since_s for name, since_s in opened_now[:0]}\n",
    ),
    (
        "upserts-acknowledged-unwritten",
        "rows that came since the last early lot are acknowledged at the barrier and never written",
        "upserts",
        "barrier_runtime/connectors/sink_bases/upsert.py",
        "        self._buffers.stage(transaction, self.write_out, closed=True)\n",
        "        self._buffers.stage(transaction, lambda batches: True, closed=True)\n",
    ),
    (
        "mark-raised-from-wherever-it-is",
        "rows are written to PostgreSQL whatever the mark says: those that another process has committed come twice",
        "staged",
        "barrier_runtime/connectors/sink_bases/sql/dialect.py",
        '            f"where {self.mark_owner} and checkpoint = %(known)s"\n',
        '            f"where {self.mark_owner}"\n',
    ),
    (
        "mark-apart-from-the-rows",
        "rows are copied into the table in one transaction, the mark is raised in another one",
        "staged",
        "barrier_runtime/connectors/postgres/dialect.py",
        "            session.exchange(connection, [(raise_mark, raising), *one_window * count, *more], copies)\n",
        "            session.exchange(connection, [*one_window * count, *more], copies)\n"
        "            session.exchange(connection, [(raise_mark, raising)])\n",
    ),
    (
        "mark-remembered-before-the-commit",
        "a sink takes a checkpoint for visible before the transaction that shows it has ended",
        "staged",
        "barrier_runtime/connectors/sink_bases/sql/sink.py",
        "        objects = [staged for batch in due for staged in batch.objects]\n",
        "        objects = [staged for batch in due for staged in batch.objects]\n"
        "        self._marks[mark] = due[-1].checkpoint\n",
    ),
    (
        "savepoint-before-its-rows-are-visible",
        "a checkpoint is copied as soon as it is complete, while sinks have still to commit what it lists",
        "bank",
        "coordinator/checkpoints/savepoints.py",
        "            if all_through(entry.manifest.checkpoint):\n",
        "            if entry.manifest.checkpoint:\n",
    ),
    (
        "slots-of-a-rescale-divide-as-before",
        "a slot restores and divides rows by the number of slots that the job began with",
        "bank",
        "barrier_runtime/runtime/slot.py",
        "        graph = replace(self._graph, parallelism=len(message.peers) or self._graph.parallelism)\n",
        "        graph = replace(self._graph, parallelism=self._graph.parallelism)\n",
    ),
    (
        "any-earlier-import-is-taken",
        "a job that once began with a savepoint goes on as it is, though it was put on another one since",
        None,
        "coordinator/log/restore_choice.py",
        "    begun = grew_from(view, savepoint.id)\n",
        "    begun = any(fence.spec.run_id == import_run_id(savepoint.id) for fence in _fences(view))\n",
    ),
    (
        "savepoint-with-transactions",
        "what sinks list as pending is copied into the savepoint",
        "bank",
        "coordinator/log/savepoint.py",
        "_settled(snapshot) if snapshot.operator in sinks else snapshot for",
        "snapshot for",
    ),
    (
        "list-append-lost-in-a-delta",
        "the third element of a list of state is seen until the barrier, and not written with what it froze",
        "bank",
        "state/values/table.py",
        "        return list(zip(data_keys, data, strict=True))\n\n    def _encode_all",
        "        lost = [self.name == 'pairs' and key[-1] == 2 for key in keys]\n"
        "        entries = zip(data_keys, data, strict=True)\n"
        "        return [entry for gone, entry in zip(lost, entries, strict=True) if not gone]\n\n    def _encode_all",
    ),
    (
        "deleted-map-entry-comes-back",
        "that an entry of a map was removed is not written: it is back when the store is asked",
        "bank",
        "state/values/table.py",
        "        return list(zip(data_keys, data, strict=True))\n\n    def _encode_all",
        "        kept = [each for each in zip(data_keys, data, strict=True) if each[1] is not None]\n"
        "        return kept\n\n    def _encode_all",
    ),
    (
        "expired-value-from-a-cache",
        "a value that was written or read since the last barrier is given also when its time is over",
        "events",
        "state/values/timed_table.py",
        "        if not live:\n            if self._is_past(ms):\n                self._table.delete(key)\n"
        "            return None\n",
        "        if not live and key not in self._table._dirty:\n            return None\n",
    ),
    (
        "expired-entry-after-a-restore",
        "entries that are read from the store have lost their time, and count from when they are read first",
        "events",
        "state/values/expiry.py",
        "            return read(data, 2)[0] if data[:2] == mark else None, decode(data[_HEAD:])\n",
        "            return None, decode(data[_HEAD:])\n",
    ),
    (
        "replies-reach-the-snapshot",
        "rows whose reply comes between a snapshot and its upload are in the snapshot no more",
        "lookups",
        "barrier_runtime/operators/lookups/operator.py",
        "encode_held(remaining)",
        "encode_held(self._held.remaining())",
    ),
    (
        "ids-before-a-restore-are-new",
        "`deduplicate` does not learn the ids of the restored state: a repeat behind a restore or a rescale passes",
        "events",
        "barrier_runtime/operators/deduplication/operator.py",
        "        self._fill(hashes)\n        self._swept_ms = self._watermark_ms\n",
        "        self._swept_ms = self._watermark_ms\n",
    ),
    (
        "stable-rows-go-out-undecided",
        "`stable` releases rows when its snapshot is taken, before the decision",
        "stable",
        "barrier_runtime/operators/stable.py",
        "        self._captured = self._next\n        self._snapshots",
        "        self._captured = self._decided = self._next\n        self._snapshots",
    ),
    (
        "stable-rows-go-out-twice",
        "the last of several batches that `stable` releases together stays, and goes out again",
        "stable",
        "barrier_runtime/operators/stable.py",
        "        self._drop(len(taken))\n",
        "        self._drop(len(taken) - (len(taken) > 1))\n",
    ),
    (
        "stable-rows-change-places",
        "batches that `stable` releases together change places",
        "stable",
        "barrier_runtime/operators/stable.py",
        "            taken.append(batch)\n",
        "            taken.insert(0, batch)\n",
    ),
    (
        "stable-rows-lost-at-a-rescale",
        "with fewer subtasks the rows of the others are not restored",
        "stable",
        "barrier_runtime/operators/stable.py",
        "snapshot.subtask % context.parallelism == context.subtask",
        "snapshot.subtask == context.subtask",
    ),
    (
        "stable-rows-go-out-at-an-abort",
        "`stable` releases the rows of an aborted checkpoint",
        "stable",
        "barrier_runtime/operators/stable.py",
        "    def on_abort(self, checkpoint: int) -> None:\n",
        "    def on_abort(self, checkpoint: int) -> None:\n        self.on_complete(checkpoint)\n",
    ),
    (
        "stable-rows-mix-with-later-rows",
        "`stable` takes a barrier although restored rows wait, so later rows of their keys may overtake them",
        "stable",
        "barrier_runtime/operators/stable.py",
        "        return self._first >= self._decided_before\n",
        "        return True\n",
    ),
    (
        "stable-rows-missing-in-the-next-snapshot",
        "a snapshot leaves out the rows of the snapshot before it, which are not decided or not released yet",
        "stable",
        "barrier_runtime/operators/stable.py",
        "        self._captured = self._next\n        self._snapshots.append((checkpoint, self._next))\n"
        "        if not self._items:\n            return Capture()\n        items = tuple(self._items)\n",
        "        stored, self._captured = self._captured, self._next\n"
        "        self._snapshots.append((checkpoint, self._next))\n"
        "        if not self._items:\n            return Capture()\n"
        "        items = tuple(islice(self._items, max(0, stored - self._first), None))\n",
    ),
    (
        "stable-rows-wait-for-their-own-decision",
        "restored rows of `stable` wait for a decision, and hold back the barrier of the checkpoint to be decided",
        "stable",
        "barrier_runtime/operators/stable.py",
        "        self._decided = self._decided_before = self._captured = self._next\n",
        "        self._decided_before = self._captured = self._next\n",
    ),
    (
        "restored-copy-is-stale",
        "the last change of broadcast state before a checkpoint is missing after a restore",
        "rules",
        "barrier_runtime/operators/state/broadcast_copy.py",
        "            copy.load(entries_of(content, key, name))\n",
        "            copy.load(dict(list(entries_of(content, key, name).items())[:-1]))\n",
    ),
    (
        "outer-row-before-the-other-sides-watermark",
        "a row goes out without a partner when the times of its own side have passed the last time of one",
        "joins",
        "barrier_runtime/operators/joins/interval.py",
        "            removed = buffer.remove_passed(before)\n",
        "            newest = max((run.last for run in buffer.runs), default=before)\n"
        "            removed = buffer.remove_passed(max(before, newest))\n",
    ),
    (
        "as-of-version-dropped-with-its-time",
        "a version goes when the watermark has passed it, whatever is held on the other side",
        "joins",
        "barrier_runtime/operators/joins/as_of.py",
        "        self._superseded(_remove_superseded(versions, before))\n",
        "        versions.drop_passed(before)\n",
    ),
    (
        "join-is-late-by-one",
        "the first millisecond after the watermark is late, too",
        "joins",
        "barrier_runtime/operators/joins/base.py",
        "        late = times_ms <= self._watermarks(batch, port)\n",
        "        late = times_ms <= self._watermarks(batch, port) + 1\n",
    ),
    (
        "split-runs-ahead",
        "a split is read however far ahead of the slowest one it is",
        "events",
        "barrier_runtime/runtime/sources/driver.py",
        "            while self._queue and self._queue[0][0] <= self._ahead_ms:\n",
        "            while self._queue:\n",
    ),
    (
        "split-without-rows-holds-nobody",
        "splits go ahead while another one has had no row",
        "events",
        "coordinator/job/generation.py",
        "                if source.split:",
        "                if source.split and source.watermark_ms is not None:",
    ),
    (
        "rows-encoded-early-are-lost",
        "rows that were encoded before the barrier are not in the file",
        "bank",
        "barrier_runtime/connectors/sink_bases/encoders.py",
        "        return [self.encoded(chunk) for chunk in self.chunks]\n",
        "        early, late = [p for p in self.chunks if p.encoded], [p for p in self.chunks if not p.encoded]\n"
        "        return [self.encoded(chunk) for chunk in late or early]\n",
    ),
    (
        "rows-encoded-early-go-last",
        "rows that were encoded before the barrier come behind those that were not",
        "bank",
        "barrier_runtime/connectors/sink_bases/encoders.py",
        "        return [self.encoded(chunk) for chunk in self.chunks]\n",
        "        return [self.encoded(chunk) for chunk in sorted(self.chunks, key=lambda p: p.encoded is not None)]\n",
    ),
    (
        "decided-rows-swept-from-the-store",
        "a sink that opens drops what older generations staged, also what is decided and not written yet",
        "staged",
        "barrier_runtime/connectors/sink_bases/write_ahead.py",
        "if key not in needed and self._is_orphan(key)])\n",
        "if self._is_orphan(key)])\n",
    ),
)


@contextlib.contextmanager
def _copies_differ() -> Iterator[None]:
    """Disables the comparison of hashes, too: otherwise no checkpoint is decided, and no wrong row is visible."""
    channels, agreement = "barrier_runtime/runtime/network/channels.py", "coordinator/checkpoints/checkpoint.py"
    with (
        planted(channels, "parts = [(0, batch)]\n", "parts = [(self.rows % len(self._channels), batch)]\n"),
        planted(agreement, "            if value != agreed:\n", "            if value is None:\n"),
    ):
        yield


@contextlib.contextmanager
def _timers_before_rules() -> Iterator[None]:
    """Ends event time with its inputs, without regard to waiting rules."""
    connected = "barrier_runtime/operators/functions/connected.py"
    with (
        planted("barrier_runtime/runtime/subtask.py", "if said.ms != WATERMARK_MAX:", "if said.ms is not None:"),
        planted(
            connected,
            "if watermark_ms == WATERMARK_MAX:\n            self._waiting.ended()\n",
            "if False:\n            pass\n",
        ),
    ):
        yield


def _plant(file: str, old: str, new: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    return partial(planted, file, old, new)


for mutant in MUTANTS:
    if mutant.name in _STORIES:
        what, plant = f"this does not hold: {mutant.rule}", _plant(mutant.file, mutant.old, mutant.new)
        CANARIES[mutant.name] = Canary(mutant.name, what, plant, _STORIES[mutant.name])
for name, what, story, file, old, new in _CHANGES:
    CANARIES[name] = Canary(name, what, _plant(file, old, new), story)


@contextlib.contextmanager
def _early_in_one() -> Iterator[None]:
    """Disables the comparison of subtasks' reports, too."""
    switching, agreement = "barrier_runtime/operators/functions/switching.py", "coordinator/checkpoints/checkpoint.py"
    early = "        (self.due if self._subtask == 1 else self._waiting).append((input, batch.reaching(None)))\n"
    with (
        planted(switching, "        self._waiting.append((input, batch.reaching(None)))\n", early),
        planted(agreement, "            if value != agreed:\n", "            if value is None:\n"),
    ):
        yield


CANARIES["rules-valid-early-in-one-subtask"] = Canary(
    "rules-valid-early-in-one-subtask",
    "in one subtask rules are valid as soon as they come, not behind the next barrier",
    _early_in_one,
    "rules",
)
CANARIES["timers-before-the-last-rules"] = Canary(
    "timers-before-the-last-rules",
    "at the end of input timers of event time fire before the rules that came last are valid",
    _timers_before_rules,
    "rules",
)
CANARIES["broadcast-copy-that-differs"] = Canary(
    "broadcast-copy-that-differs",
    "broadcast rows go on from several subtasks, which others hear in another order, and nobody compares the copies",
    _copies_differ,
    "rules",
)
assert CANARIES.keys() >= _STORIES.keys(), f"the catalogue has no {_STORIES.keys() - CANARIES.keys()}"
