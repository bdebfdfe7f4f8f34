"""Sink that passes every call on: base of the watched sinks of `certify` and `check`."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink


class ForwardingSink(TwoPhaseCommitSink):
    def __init__(self, sink: TwoPhaseCommitSink) -> None:
        self.sink = sink
        self.guarantee = sink.guarantee
        self.global_committer = sink.global_committer
        self.commits_together = sink.commits_together
        self.keeps_rows = sink.keeps_rows
        self.writes_at_once = sink.writes_at_once

    def open(self, context: SinkContext) -> None:
        self.sink.open(context)
        self.most_decided = self.sink.most_decided

    def begin_transaction(self) -> Any:
        return self.sink.begin_transaction()

    def write(self, transaction: Any, rows: pa.RecordBatch) -> None:
        self.sink.write(transaction, rows)

    def stage_early(self, transaction: Any) -> Callable[[], Any] | None:
        return self.sink.stage_early(transaction)

    def stage_now(self, transaction: Any) -> Callable[[], Any] | None:
        return self.sink.stage_now(transaction)

    def encode_early(self, transaction: Any) -> Callable[[], None] | None:
        return self.sink.encode_early(transaction)

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        return self.sink.pre_commit(transaction, checkpoint)

    def commit(self, committable: bytes) -> None:
        self.sink.commit(committable)

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self.sink.commit_together(committables)

    def abort(self, committable: bytes) -> None:
        self.sink.abort(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        self.sink.commit_globally(checkpoint, committables)

    def kept(self, stored: Container[str]) -> Mapping[str, bytes]:
        return self.sink.kept(stored)

    def kept_names(self) -> frozenset[str]:
        return self.sink.kept_names()

    def restore_kept(self, kept: Sequence[Mapping[str, bytes]], *, moved: bool) -> None:
        self.sink.restore_kept(kept, moved=moved)

    def end_of_input(self) -> None:
        self.sink.end_of_input()

    def recover(self, decided: Sequence[bytes]) -> None:
        self.sink.recover(decided)

    def close(self) -> None:
        self.sink.close()
