"""Compressed text: the same bytes at the same offsets as the plain file, at any distance; errors name the damaged
place.

`test_source_files` tests for all formats that each row is read once from any position.
"""

import bz2
import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.connectors.files.source import text as text_files
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.small_table import small_table
from barrier_runtime.connectors.files.source.text import open_text
from barrier_runtime.state.errors import InvalidJob

SCHEMA = pa.schema([("n", pa.int64())])


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd, "bz2": bz2.compress}


@pytest.fixture(params=list(COMPRESS))
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def file_of(path: Path, data: bytes) -> FoundFile:
    path.write_bytes(data)
    return FoundFile(path.name, str(path), len(data))


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in range(first, first + count))


def source(path: Path) -> JsonlFiles:
    return JsonlFiles("src", str(path), SCHEMA, None)


@pytest.mark.slow
def test_any_piece_is_that_of_the_plain_file_in_whatever_order_they_are_asked_for(tmp_path: Path, ending: str) -> None:
    chance = random.Random(3)
    data = chance.randbytes(1_000_000)
    text = open_text(file_of(tmp_path / f"a.{ending}", COMPRESS[ending](data)), "src")
    assert text.end is None
    offset = 0
    for _ in range(60):
        offset = chance.randint(0, len(data) + 10) if chance.random() < 0.2 else offset + chance.randint(0, 100_000)
        length = chance.randint(0, 150_000)
        assert text.read_at(offset, length) == data[offset : offset + length]
    assert text.read_at(0, len(data) + 1) == data
    assert text.end == len(data)
    text.close()


def test_several_compressed_streams_in_one_file_are_one_text(tmp_path: Path, ending: str) -> None:
    """`cat a.gz b.gz` and appending log rotations create such files."""
    compress = COMPRESS[ending]
    (tmp_path / f"a.jsonl.{ending}").write_bytes(compress(lines(0, 5)) + compress(lines(5, 5)))
    assert [row["n"] for row in rows_of(drained(opened(spec_of(source(tmp_path)), World())))] == list(range(10))


@pytest.mark.slow
def test_a_far_position_is_reached_in_steps_and_then_the_very_next_row_comes(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "_CHUNK_BYTES", 10_000)
    monkeypatch.setattr(text_files, "_STEP_BYTES", 100_000)
    (tmp_path / f"a.jsonl.{ending}").write_bytes(COMPRESS[ending](lines(0, 200_000)))
    spec, world = spec_of(source(tmp_path)), World()
    driver, read = opened(spec, world), 0
    while read < 150_000:
        batch = driver.poll(0)
        read += batch.rows.num_rows if batch is not None else 0
    driver = opened(spec, world, (snapshot_of(driver, world),))
    silent = 0
    while (batch := driver.poll(0, 1)) is None:
        silent += 1
    assert batch.rows.column(0)[0].as_py() == read
    assert silent >= 10
    assert rows_of(drained(driver))[-1] == {"n": 199_999}


@pytest.mark.parametrize(
    ("ending", "damage"),
    [  # not zst with a changed byte: only a checksum shows that, which is for the writer to add
        *[(ending, damage) for ending in COMPRESS for damage in ("cut", "plain")],
        ("gz", "changed"),
        ("bz2", "changed"),
    ],
)
def test_damage_is_reported_with_file_and_place(tmp_path: Path, ending: str, damage: str) -> None:
    data = bytearray(COMPRESS[ending](random.Random(1).randbytes(100_000).hex().encode()))
    if damage == "cut":
        del data[-20:]
    elif damage == "changed":
        data[len(data) // 2 : len(data) // 2 + 8] = b"\x00" * 8
    else:
        data = bytearray(b'{"n": 1}\n' * 10)
    text = open_text(file_of(tmp_path / f"a.jsonl.{ending}", bytes(data)), "source 'src'")
    with pytest.raises(InvalidJob, match=r"source 'src': it is not valid \w+ after \d+ uncompressed bytes"):
        text.read_at(0, 1_000_000)
    text.close()


def test_an_empty_text_has_no_rows(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.jsonl.{ending}").write_bytes(COMPRESS[ending](b""))
    assert drained(opened(spec_of(source(tmp_path)), World())) == []


def test_a_small_table_may_be_compressed(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.csv.{ending}").write_bytes(COMPRESS[ending](b"n,s\n1,x\n2,y\n"))
    assert small_table(str(tmp_path / f"a.csv.{ending}"), "join").to_pylist() == [
        {"n": 1, "s": "x"},
        {"n": 2, "s": "y"},
    ]
