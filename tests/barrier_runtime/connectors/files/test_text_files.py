"""Text files: one row per line, for every kind of line end."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JobFailed


def lines_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    flow, out = Dataflow("text"), CollectSink()
    flow.read_text("in", str(path), **options).sink("out", out)
    flow.run_local(parallelism=1)
    return out.rows()


def test_each_line_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes('\ufeffone, "two"\r\n\nMüller\nlast'.encode())
    assert [row["line"] for row in lines_of(tmp_path)] == ['one, "two"', "", "Müller", "last"]
    (tmp_path / "a.txt").unlink()
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"x\ny\n"))
    assert lines_of(tmp_path, schema={"message": str}) == [{"message": "x"}, {"message": "y"}]


@pytest.mark.slow
def test_more_lines_than_a_block_has_are_each_there_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n:020}\n" for n in range(30_000)))
    assert [row["line"] for row in lines_of(tmp_path)] == [f"line {n:020}" for n in range(30_000)]


def test_what_is_not_utf8_is_told_and_can_be_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("Müller\n".encode("latin-1"))
    assert lines_of(path, schema={"line": bytes}) == [{"line": b"M\xfcller"}]
    with pytest.raises((InvalidJob, JobFailed), match=r'take bytes by schema=\{"line": bytes\}'):
        lines_of(path)


def test_another_schema_than_one_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(InvalidJob, match="a text file has one column"):
        Dataflow("text").read_text("in", str(tmp_path), schema={"a": str, "b": str})
