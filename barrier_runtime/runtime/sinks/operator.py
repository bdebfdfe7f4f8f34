"""Operator around a `TwoPhaseCommitSink` that applies the effects of `SinkDriver`.

`write` runs on the loop; early encoding, early staging and `pre_commit` run on the snapshot executor; `commit` runs on
another executor: two threads use the sink at once. If rows arrive faster than they are staged, the operator has no
room, so memory is bounded.
"""

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink, check_methods, commits_parts, takes_few
from barrier_runtime.coordinator.metric_table import (
    EARLY_STAGING_FAILED,
    PROCESSED,
    TRANSACTION_OLDEST_MS,
    TRANSACTION_OPENED_MS,
    TRANSACTION_TIMEOUT_MS,
    TRANSACTIONS_UNDECIDED,
    VISIBLE,
)
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Capture, CommitReport, Emit, Operator, OperatorContext, SplitPosition
from barrier_runtime.runtime.error_reports import COMMITTING, OPENING, STAGING, SinkTrouble, runs_users_code
from barrier_runtime.runtime.sinks.at_once import AtOnce, SinkTransaction
from barrier_runtime.runtime.sinks.driver import (
    Commit,
    CommitTogether,
    Effect,
    PreCommit,
    Recover,
    ReportCommitted,
    ReportFailing,
    RetryAt,
    SinkDriver,
    Stage,
    Transaction,
    TransactionVisible,
)
from barrier_runtime.runtime.sinks.global_committer import (
    CommitAll,
    GlobalCommitDriver,
    GlobalEffect,
    ReportGlobally,
    entries_read,
)
from barrier_runtime.runtime.sinks.pending_set import (
    PENDING_VALUE,
    SINK_VALUE,
    KeptRows,
    PendingEntry,
    describe_sink,
    encode_pending,
    entries_of_subtask,
    pending_sets,
)
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.outside_errors import must_be_mended
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot

_POLL_S = 0.005
_MOST_STAGINGS = 2  # one running and one waiting, beside the filling buffer


class SinkOperator(Operator):
    def __init__(self, name: str, make_sink: Callable[[], TwoPhaseCommitSink]) -> None:
        self._name = name
        self._make_sink = make_sink
        self._closed = False

    def fresh_sink(self) -> TwoPhaseCommitSink:
        return self._make_sink()

    def open(self, context: OperatorContext) -> None:
        """Checks the target, then commits the transactions that the restored checkpoint decided.

        If the target cannot be reached, the job continues and retries the commits. After rescaling, `open` raises
        `Unavailable` instead: commits of another subtask may hold older rows of keys that this subtask now owns.
        """
        where = f"job {context.job!r}, sink {self._name!r}, subtask {context.subtask}"
        self._context = context
        self._where = where
        self._sink = self._make_sink()
        self._trouble = SinkTrouble(self._sink, self._name, context.subtask)
        check_methods(self._sink, where)
        self.takes_positions = self._sink.takes_positions and context.follows_source
        self.is_own_sink = not runs_users_code(self._sink)
        self._takes_few = takes_few(type(self._sink))
        self._description = describe_sink(self._sink, where)
        target = SinkContext(
            context.job,
            self._name,
            context.token,
            context.subtask,
            context.parallelism,
            context.make_store,
            context.job_store,
            context.lineage,
            context.new_id,
            context.wall_ms,
            context.log_sha256,
            self._was_written(context),
            max((each.parallelism for each in context.restored), default=0),
            context.latency_target_s,
        )
        self._trouble.around(OPENING, lambda: self._sink.open(target))
        self._kept = KeptRows(self._sink, where)
        self._kept.restore(context.restored, context.subtask, context.parallelism)
        self._driver = SinkDriver(
            where,
            context.subtask,
            part_of_whole=self._sink.global_committer,
            together=self._sink.commits_together,
            only_globally=not commits_parts(self._sink),
        )
        self._stagings = 0
        self._encoding = False
        self._refused: Exception | None = None  # error of early encoding that a person must mend
        self._at_once = AtOnce(self._sink, context) if self._sink.writes_at_once else None
        self._staged: dict[int, SinkTransaction] = {}
        self._sealing = threading.Lock()
        self._recovered: tuple[int, BaseException | None] | None = None  # the outcome, until the loop handles it
        self._begin()
        sets = pending_sets(context.restored, where)
        checkpoint = max((each.checkpoint for each in sets), default=0)
        self._global = GlobalCommitDriver(done=checkpoint if context.settled else 0)
        entries = () if context.settled else entries_of_subtask(sets, context.subtask, context.parallelism)
        rescaled = any(each.parallelism != context.parallelism for each in context.restored)
        self._recover_now(self._driver.recover(checkpoint, entries), rescaled)

    def _was_written(self, context: OperatorContext) -> bool:
        """True if an equal sink staged rows of the restored checkpoint (`SinkContext.known_target`)."""
        same = any(each.values.get(SINK_VALUE) == self._description for each in context.restored)
        return same and any(each.entries for each in pending_sets(context.restored, self._where))

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if self._recovered is not None:
            self._hear_of_recovery()
        refused = self._refused if self._at_once is None else self._at_once.failed
        if refused is not None:
            self._trouble.raise_named(refused, STAGING)
        rows, staged = batch.count, self._open_staged
        try:
            if self._takes_few and batch.few is not None:
                self._sink.write_few(staged.transaction, batch.few)
            else:
                self._sink.write(staged.transaction, batch.rows)
        except BarrierRuntimeError:
            raise
        except Exception as error:
            raise self._trouble.of_write(error, batch.rows.schema) from error
        staged.emitted.add(batch.emit_ns, rows)
        self._context.metrics.latency(PROCESSED, batch.emit_ns, rows)
        if self._at_once is not None:
            self._at_once.wrote(staged)
        elif not self.takes_positions:
            self._stage_early()
        if not self._encoding:
            encode = self._sink.encode_early(staged.transaction)
            if encode is not None:
                self._encoding = True
                self._context.snapshot_executor.submit(encode, self._encoded_early)

    def reached(self, split: str, at: SplitPosition) -> None:
        self._sink.reached(split, at)
        self._stage_early()

    def written(self) -> Mapping[str, SplitPosition]:
        return self._sink.written()

    def _stage_early(self) -> None:
        early = self._sink.stage_early(self._open_staged.transaction)
        if early is not None:
            self._stagings += 1
            self._context.snapshot_executor.submit(early, self._staged_early)

    @property
    def has_room(self) -> bool:
        if self._stagings >= _MOST_STAGINGS or (self._at_once is not None and not self._at_once.has_room):
            return False
        most = self._sink.most_decided
        # the loop handles the recovery's outcome with the next element: let it through
        return most is None or self._recovered is not None or self._driver.decided < most

    def snapshot(self, checkpoint: int) -> Capture:
        self._catch_up()
        if self._at_once is not None:
            self._at_once.barrier()
        self._do(self._driver.barrier(checkpoint))
        listed = self._driver.pending
        unsealed = [self._staged[t.number] for t in listed if t.stage is Stage.SEALING]
        self._tell_transactions()
        stored = self._kept.stored()
        return Capture(
            values={SINK_VALUE: self._description},
            blocking=lambda: self._seal(checkpoint, listed, unsealed, stored),
            stored=stored,
            on_stored=self._kept.on_stored if self._sink.keeps_rows else None,
        )

    def on_complete(self, checkpoint: int) -> None:
        self._catch_up()
        self._do(self._driver.complete(checkpoint))
        self._tell_transactions()
        if self._driver.awaits_pre_commit:
            self._context.call_later(_POLL_S, self._look_again)

    def on_abort(self, checkpoint: int) -> None:
        self._catch_up()
        self._do(self._driver.abort(checkpoint))

    def on_commit_globally(self, checkpoint: int, read: Callable[[], Sequence[OperatorSnapshot]]) -> None:
        self._do_globally(self._global.wanted(checkpoint, partial(entries_read, read, self._where)))

    def on_visible(self, checkpoint: int) -> None:
        self._catch_up()
        self._do(self._driver.visible(checkpoint))
        self._tell_transactions()
        if self._sink.most_decided is not None:
            self._context.wake()

    def on_end(self, emit: Emit) -> None:
        self._sink.end_of_input()

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if self._recovered is not None:
            self._hear_of_recovery()

    def close(self) -> None:
        if not self._closed:
            self._end()
            sink = getattr(self, "_sink", None)  # `open` may have failed before
            if sink is not None:
                sink.close()

    def closing(self) -> Callable[[], None]:
        if self._closed or not hasattr(self, "_sink"):
            return self.close
        self._end()
        return self._sink.close

    def _end(self) -> None:
        self._closed = True
        at_once = getattr(self, "_at_once", None)
        if at_once is not None:
            at_once.close()

    # ------------------------------------------------------------ pre-commit (off the loop)

    def _seal(
        self, checkpoint: int, listed: tuple[Transaction, ...], unsealed: list[SinkTransaction], stored: Container[str]
    ) -> dict[str, bytes]:
        """Makes every closed transaction durable, oldest first, also those of failed or aborted checkpoints.

        Returns the pending transactions as of `checkpoint`, and kept rows of the sink that `stored` lacks.
        """
        with self._sealing:
            for staged in unsealed:
                if not staged.sealed:
                    staged.committable = self._trouble.around(
                        STAGING, partial(self._sink.pre_commit, staged.transaction, staged.checkpoint)
                    )
                    staged.transaction = None
                    staged.sealed = True
            kept = self._kept.values(stored)
        entries = [entry for transaction in listed for entry in transaction.entries]
        entries += [
            PendingEntry(staged.checkpoint, self._context.subtask, staged.committable)
            for staged in unsealed
            if staged.committable is not None
        ]
        return {PENDING_VALUE: encode_pending(checkpoint, entries), **kept}

    def _look_for_sealed(self) -> None:
        """Polls, because the sealing thread never calls into the loop."""
        for transaction in self._driver.pending:
            if transaction.stage is Stage.SEALING:
                staged = self._staged[transaction.number]
                if not staged.sealed:
                    return
                self._do(self._driver.precommitted(transaction.checkpoint, staged.committable))

    def _look_again(self) -> None:
        if self._closed:
            return
        self._look_for_sealed()
        if self._driver.awaits_pre_commit:
            self._context.call_later(_POLL_S, self._look_again)

    # ------------------------------------------------------------ effects (on the loop)

    def _do(self, effects: list[Effect]) -> None:
        report, metrics = self._context.report_commit, self._context.metrics
        for effect in effects:
            if isinstance(effect, PreCommit):
                self._open_staged.checkpoint = effect.checkpoint
                self._begin()
            elif isinstance(effect, Commit):
                self._commit(effect)
            elif isinstance(effect, CommitTogether):
                self._commit_together(effect)
            elif isinstance(effect, Recover):
                self._recover_on_executor(effect)
            elif isinstance(effect, TransactionVisible):
                staged = self._staged.pop(effect.txn, None)  # recovered transactions are not in `_staged`
                for emit_ns, rows in staged.emitted.pairs() if staged is not None else ():
                    metrics.latency(VISIBLE, emit_ns, rows)
            elif isinstance(effect, ReportCommitted):
                report(CommitReport(effect.checkpoint))
            elif isinstance(effect, ReportFailing):
                report(CommitReport(effect.checkpoint, effect.attempts, effect.error))
            else:
                self._retry_at(effect)

    def _begin(self) -> None:
        self._open_staged = self._staged[self._driver.open_txn] = SinkTransaction(
            self._sink.begin_transaction(), self._context.wall_ms()
        )

    def _tell_transactions(self) -> None:
        metrics, pending = self._context.metrics, self._driver.pending
        oldest = min((self._staged[each.number].began_ms for each in pending if each.number in self._staged), default=0)
        metrics.gauge(TRANSACTIONS_UNDECIDED, self._driver.undecided)
        metrics.gauge(TRANSACTION_OLDEST_MS, oldest)
        metrics.gauge(TRANSACTION_OPENED_MS, self._open_staged.began_ms)
        metrics.gauge(TRANSACTION_TIMEOUT_MS, self._sink.transaction_timeout_ms or 0)

    def _commit(self, effect: Commit) -> None:
        self._on_executor(effect.checkpoint, partial(self._sink.commit, effect.committable))

    def _commit_together(self, effect: CommitTogether) -> None:
        self._on_executor(effect.checkpoint, partial(self._sink.commit_together, effect.committables))

    def _recover_on_executor(self, effect: Recover) -> None:
        self._on_executor(effect.checkpoint, partial(self._sink.recover, effect.committables))

    def _on_executor(self, checkpoint: int, work: Callable[[], None]) -> None:
        """`work` may hang beyond this generation's life: hanging `work` keeps only the sink alive."""

        def done(_: Any, error: BaseException | None) -> None:
            if not self._closed:
                self._settled(checkpoint, error)

        self._context.executor.submit(work, done)

    def _retry_at(self, effect: RetryAt) -> None:
        self._context.call_later(max(0.0, effect.at - self._context.now_s()), self._retry)

    def _retry(self) -> None:
        if not self._closed:
            self._do(self._driver.retry())

    def _staged_early(self, _: Any, error: BaseException | None) -> None:
        """Only counts failures: pre-commit stages the rest."""
        self._stagings -= 1
        self._context.wake()
        if error is not None and not self._closed:
            self._context.metrics.count(EARLY_STAGING_FAILED)

    def _encoded_early(self, _: Any, error: BaseException | None) -> None:
        """Keeps an error that a person must mend. Pre-commit reports others."""
        self._encoding = False
        if isinstance(error, Exception) and must_be_mended(error):
            self._refused = error

    # ------------------------------------------------------------ the global committer (on the loop)

    def _do_globally(self, effects: list[GlobalEffect]) -> None:
        report = self._context.report_commit
        for effect in effects:
            if isinstance(effect, CommitAll):
                self._commit_all(effect)
            elif isinstance(effect, ReportGlobally):
                report(CommitReport(effect.checkpoint, globally=True))
            elif isinstance(effect, ReportFailing):
                report(CommitReport(effect.checkpoint, effect.attempts, effect.error, globally=True))
            else:
                self._context.call_later(max(0.0, effect.at - self._context.now_s()), self._retry_globally)

    def _commit_all(self, effect: CommitAll) -> None:
        def done(_: Any, error: BaseException | None) -> None:
            if self._closed:
                return
            if error is None:
                self._do_globally(self._global.committed())
            else:
                self._do_globally(self._global.failed(self._trouble.commit_failed(error), self._context.now_s()))

        self._context.executor.submit(partial(_commit_globally, self._sink, effect), done)

    def _retry_globally(self) -> None:
        if not self._closed:
            self._do_globally(self._global.retry())

    # ------------------------------------------------------------ recovery

    def _recover_now(self, effects: list[Effect], rescaled: bool) -> None:
        for effect in effects:
            assert isinstance(effect, Recover), effect  # an empty driver has no other effects
            try:
                self._sink.recover(effect.committables)
            except Exception as error:
                if must_be_mended(error):
                    self._trouble.raise_named(error, COMMITTING)
                if rescaled and effect.committables and not self._sink.global_committer:
                    raise Unavailable(
                        f"{self._where}: the job was rescaled, and what checkpoint {effect.checkpoint} decided must be "
                        f"committed before it goes on ({self._trouble.commit_failed(error)}): is the target running? "
                        "It is tried again when the job restarts"
                    ) from error
                self._recovered = (effect.checkpoint, error)
            else:
                self._recovered = (effect.checkpoint, None)
        # nothing else might call: no rows may come, and no checkpoints while commits are behind
        self._context.executor.submit(_nothing, lambda _, error: self._hear_of_recovery())

    def _hear_of_recovery(self) -> None:
        if self._recovered is not None and not self._closed:
            checkpoint, error = self._recovered
            self._recovered = None
            self._settled(checkpoint, error)

    def _catch_up(self) -> None:
        self._hear_of_recovery()
        self._look_for_sealed()

    def _settled(self, checkpoint: int, error: BaseException | None) -> None:
        if self._sink.most_decided is not None:
            self._context.wake()
        if error is None:
            self._do(self._driver.committed(checkpoint))
        else:
            self._do(self._driver.commit_failed(checkpoint, self._trouble.commit_failed(error), self._context.now_s()))
        self._tell_transactions()


def _nothing() -> None:
    """Does nothing: the executor reports the end on the loop."""


def _commit_globally(sink: TwoPhaseCommitSink, effect: CommitAll) -> None:
    sink.commit_globally(effect.checkpoint, tuple(entry.committable for entry in effect.read()))
