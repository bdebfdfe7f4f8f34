"""Points at which `certify` and `check` let a process die.

Only a death between two lines shows that a sink needs two steps to show rows and remember them; a line that writes a
file has several steps. A write of a file may also fail without a death.
"""

import builtins
import errno
import inspect
import io
import os
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink, commits_parts, takes_few
from barrier_runtime.data.few_rows import FewRows

_LIBRARY = (sysconfig.get_paths()["stdlib"], "<frozen ")


class Point(NamedTuple):
    """Point `number` (from 0) of a kind: "call", "line", "write", or a phase of a checked flow."""

    kind: str
    number: int


class CrashPoints:
    def __init__(self, at: Point | None = None) -> None:
        self.reached: Counter[str] = Counter()
        self._at = at

    def reach(self, kind: str) -> bool:
        number = self.reached[kind]
        self.reached[kind] = number + 1
        return (kind, number) == self._at


class Crash(BaseException):
    """Death of the process. Code of the process must not handle it, so this is no `Exception`."""


def own_files(sink: TwoPhaseCommitSink) -> frozenset[str]:
    """Files of the sink's classes and of the classes' packages."""
    found: set[str] = set()
    for each in type(sink).__mro__:
        module = sys.modules.get(each.__module__)
        file = getattr(module, "__file__", None)
        if file is None or each in (object, TwoPhaseCommitSink):
            continue
        found.add(inspect.getsourcefile(each) or file)
        if module is not None and module.__package__:
            found.update(str(path) for path in Path(file).parent.glob("*.py"))
    return frozenset(found)


class Lines:
    """Raises `Crash` at the chosen line of a sink's own `files`; or that or `OSError` at a step of file writes."""

    def __init__(self, points: CrashPoints, files: frozenset[str] = frozenset(), *, every_line: bool = False) -> None:
        self._points = points
        self._files = files
        self._every_line = every_line

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.gettrace()
        if self._every_line:
            sys.settrace(self._trace)
        try:
            with self._watched_files():
                yield
        finally:
            if self._every_line:
                sys.settrace(before)

    def written(self, what: str, file: str) -> None:
        if self._points.reach("write"):
            raise Crash(what)
        if self._points.reach("failing write"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line" and self._points.reach("line"):
            raise Crash(f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}")
        return self._trace

    @contextmanager
    def _watched_files(self) -> Iterator[None]:
        """Makes `shutil` copy in chunks, not inside the kernel."""
        real, in_kernel = builtins.open, shutil._USE_CP_SENDFILE  # type: ignore[attr-defined]

        def opened(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            found = real(file, mode, *arguments, **keywords)
            if not set("wax+") & set(mode) or not self._is_own(sys._getframe(1)):
                return found
            self.written(f"the first byte of {file}", str(file))
            return _InHalves(found, self, str(file))

        builtins.open = io.open = opened
        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
        try:
            yield
        finally:
            builtins.open = io.open = real
            shutil._USE_CP_SENDFILE = in_kernel  # type: ignore[attr-defined]

    def _is_own(self, frame: FrameType | None) -> bool:
        while (
            frame is not None
            and frame.f_code.co_filename.startswith(_LIBRARY)
            and "-packages" not in (frame.f_code.co_filename)
        ):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename in self._files


class _InHalves:
    def __init__(self, file: Any, lines: Lines, name: str) -> None:
        self._file = file
        self._lines = lines
        self._name = name

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._lines.written(f"the second half of a write into {self._name}", self._name)
        self._file.write(data[half:])
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __enter__(self) -> "_InHalves":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()


class ForwardingSink(TwoPhaseCommitSink):
    """Passes on every call that production makes: base of the watched sinks of `certify` and `check`."""

    def __init__(self, sink: TwoPhaseCommitSink) -> None:
        self.sink = sink
        self._takes_few = takes_few(type(sink))
        self._commits_parts = commits_parts(sink)
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

    def write_few(self, transaction: Any, rows: FewRows) -> None:
        if self._takes_few:
            self.sink.write_few(transaction, rows)
        else:
            self.sink.write(transaction, rows.record_batch())

    def stage_early(self, transaction: Any) -> Callable[[], Any] | None:
        return self.sink.stage_early(transaction)

    def stage_now(self, transaction: Any) -> Callable[[], Any] | None:
        return self.sink.stage_now(transaction)

    def encode_early(self, transaction: Any) -> Callable[[], None] | None:
        return self.sink.encode_early(transaction)

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        return self.sink.pre_commit(transaction, checkpoint)

    def commit(self, committable: bytes) -> None:
        if self._commits_parts:
            self.sink.commit(committable)

    def commit_together(self, committables: Sequence[bytes]) -> None:
        if self._commits_parts:
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
