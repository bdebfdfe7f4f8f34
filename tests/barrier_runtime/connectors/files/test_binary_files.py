"""Whole files as rows, with any content."""

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import BinarySource, CollectSink, Dataflow, InvalidJob, JobFailed
from barrier_runtime.connectors.files.source import binary
from barrier_runtime.connectors.source import Source


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    flow, out = Dataflow("binary"), CollectSink()
    flow.read_binary("in", str(path), **options).sink("out", out)
    flow.run_local(parallelism=1)
    return sorted(out.rows(), key=lambda row: row.get("path", ""))


def test_a_row_is_a_file_with_its_path_time_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.png").write_bytes(b"\x89PNG\x00\n\n")
    (tmp_path / "deep" / "empty").write_bytes(b"")
    (tmp_path / "_half").write_bytes(b"not complete yet")
    os.utime(tmp_path / "a.png", ns=(0, 1_700_000_000_123_456_789))
    first, second = rows_of(tmp_path)
    assert first == {
        "path": str(tmp_path / "a.png"),
        "modified": datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, datetime.timezone.utc),
        "length": 7,
        "content": b"\x89PNG\x00\n\n",
    }
    assert (second["path"], second["length"], second["content"]) == (str(tmp_path / "deep" / "empty"), 0, b"")


def test_only_some_endings_and_some_columns_are_wanted(tmp_path: Path) -> None:
    for name in ("day=2026-01-01/a.jpg", "day=2026-01-02/b.jpg", "day=2026-01-02/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert [row["day"].day for row in rows_of(tmp_path, suffixes=(".jpg",))] == [1, 2]
    wanted = {"path": str, "day": str, "length": int}
    assert rows_of(tmp_path, suffixes=(".txt",), schema=wanted) == [
        {"path": str(tmp_path / "day=2026-01-02/notes.txt"), "day": "2026-01-02", "length": 24}
    ]


def readers_of(path: Path) -> tuple[Source, Any]:
    source = BinarySource(str(path)).named("in")
    return source, source.reader(source.splits(1)[0])


def test_a_large_file_is_read_in_steps_and_a_restored_reader_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "_STEP_BYTES", 1_000)
    (tmp_path / "a").write_bytes(bytes(range(256)) * 10)
    source, reader = readers_of(tmp_path)
    assert reader.poll(10, 0) is None, "a step, and then others have their turn"
    in_the_middle = reader.position()
    polled = [reader.poll(10, 0) for _ in range(2)]
    assert polled[0] is None
    assert polled[1].rows.column("content")[0].as_py() == bytes(range(256)) * 10
    assert reader.finished
    at_end = reader.position()
    reader.close()
    for position, left in ((in_the_middle, 1), (at_end, 0)):
        again = source.reader(source.splits(1)[0])
        again.seek(position)
        batches = [again.poll(10, 0) for _ in range(5)]
        assert sum(batch.rows.num_rows for batch in batches if batch is not None) == left
        assert again.finished
        again.close()


def test_a_watched_folder_may_be_empty_at_first(tmp_path: Path) -> None:
    source = BinarySource(str(tmp_path), watch=datetime.timedelta(seconds=1)).named("in")
    assert source.schema == binary.BINARY
    assert not source.splits(1)


def test_a_file_that_is_too_large_for_a_row_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "_MOST_BYTES", 3)
    (tmp_path / "a").write_bytes(b"four")
    with pytest.raises((InvalidJob, JobFailed), match="it has 4 bytes, and a row may have 3: leave the file out"):
        rows_of(tmp_path)
    assert rows_of(tmp_path, schema={"length": int}) == [{"length": 4}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"text": str}}, "column 'text' .* is none of a whole file: use some of path: string"),
        ({"schema": {"content": str}}, "column 'content'"),
        ({"suffixes": ".png"}, "give a tuple of endings"),
        ({"suffixes": (".png",)}, "holds no file ending in .png: check the path"),
        ({"on_change": "append"}, "needs text files"),
    ],
)
def test_what_cannot_be_read_so_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(InvalidJob, match=message):
        Dataflow("binary").read_binary("in", str(tmp_path), **options)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="holds no file: check the path"):
        Dataflow("binary").read_binary("in", str(tmp_path))
