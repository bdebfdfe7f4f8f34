"""A commit that writes a file under the final name is not atomic, even for one line: certify finds the error."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.testing import NotCertified, certify


class Staging(TwoPhaseCommitSink):
    """Correct except for `put`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, context: SinkContext) -> None:
        self.context = context
        self.count = 0
        for name in ("staged", "out"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def begin_transaction(self) -> list[dict[str, Any]]:
        return []

    def write(self, transaction: list[dict[str, Any]], rows: pa.RecordBatch) -> None:
        transaction.extend(rows.to_pylist())

    def pre_commit(self, transaction: list[dict[str, Any]], checkpoint: int) -> bytes | None:
        if not transaction:
            return None
        self.count += 1
        me = self.context
        name = f"{me.job}-{me.sink}-{me.lineage}-{me.token}-{me.subtask}-{checkpoint}-{self.count}.json"
        (self.folder / "staged" / name).write_text(json.dumps(transaction))
        return name.encode()

    def commit(self, committable: bytes) -> None:
        out, staged = self.folder / "out" / committable.decode(), self.folder / "staged" / committable.decode()
        if not out.exists():
            self.put(staged, out)

    def put(self, staged: Path, out: Path) -> None:
        shutil.copy(staged, self.folder / "half")
        os.replace(self.folder / "half", out)

    def abort(self, committable: bytes) -> None:
        (self.folder / "staged" / committable.decode()).unlink(missing_ok=True)


class OneLine(Staging):
    def put(self, staged: Path, out: Path) -> None:
        rows = staged.read_text()
        with open(out, "w") as file: file.write(rows)  # noqa: E701  # fmt: skip


class BeginsAnew(OneLine):
    """Handles a death before the first byte, but not a death after the first byte."""

    def commit(self, committable: bytes) -> None:
        out, staged = self.folder / "out" / committable.decode(), self.folder / "staged" / committable.decode()
        if not out.exists() or out.stat().st_size == 0:
            self.put(staged, out)


class WritesText(Staging):
    def put(self, staged: Path, out: Path) -> None:
        out.write_text(staged.read_text())


class Copies(Staging):
    def put(self, staged: Path, out: Path) -> None:
        shutil.copy(staged, out)


def certified(sink: type[Staging], folder: Path, empty: bool = True, **settings: Any) -> None:
    """Certifies the sink. `empty`: the reader reads empty files, too."""

    def rows() -> list[dict[str, Any]]:
        texts = [path.read_text() for path in (folder / "out").glob("*.json")]
        return [row for text in texts if text or empty for row in json.loads(text)]

    def reset() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    certify(lambda: sink(folder), rows, scenarios=0, seeds=(), reset=reset, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("sink", [OneLine, WritesText, Copies])
def test_a_commit_that_writes_in_place_is_torn_and_the_scenario_is_named(sink: type[Staging], tmp_path: Path) -> None:
    """T10: without `inside`; the reader raises at a partial file."""
    with pytest.raises(NotCertified, match="the reader cannot read what is there") as failed:
        certified(sink, tmp_path)
    assert failed.value.rule == "torn"
    assert failed.value.scenario.startswith("write ")
    assert "inside that call, before" in str(failed.value)
    with pytest.raises(NotCertified) as alone:
        certified(sink, tmp_path / "again", only=failed.value.scenario)
    assert alone.value.rule == "torn"


@pytest.mark.slow
def test_also_where_reader_and_sink_pass_over_what_is_still_empty(tmp_path: Path) -> None:
    """T10: only a process that dies during a write leaves a partial file."""
    with pytest.raises(NotCertified, match="the reader cannot read what is there") as failed:
        certified(BeginsAnew, tmp_path, empty=False)
    assert failed.value.rule == "torn"
    assert "the second half of a write" in str(failed.value)


@pytest.mark.slow
def test_a_commit_that_writes_elsewhere_and_renames_is_certified(tmp_path: Path) -> None:
    certified(Staging, tmp_path)
