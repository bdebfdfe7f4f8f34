"""Positions of a range's blocks in real files of RocksDB, with indexes of one and two levels."""

import random
from bisect import bisect_left
from pathlib import Path

import pytest
from rocksdict import BlockBasedIndexType, BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

from barrier_runtime.state.kv.rocksdb_files import (
    FOOTER_BYTES,
    FilePart,
    UnknownLayout,
    blocks_of,
    index_of,
    whole_index,
)

BLOCK_BYTES = 256


def file_of(folder: Path, keys: list[bytes], levels: int) -> bytes:
    tables = BlockBasedOptions()
    tables.set_block_size(BLOCK_BYTES)
    tables.set_format_version(5)
    if levels == 2:
        tables.set_index_type(BlockBasedIndexType.two_level_index_search())
        tables.set_metadata_block_size(128)
        tables.set_bloom_filter(10, False)
        tables.set_partition_filters(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.lz4())
    db = Rdict(str(folder), options)
    batch = WriteBatch(raw_mode=True)
    for key in keys:
        batch.put(key, b"")
    db.write(batch)
    db.flush()
    db.close()
    (file,) = folder.glob("*.sst")
    return file.read_bytes()


def index_in(file: bytes) -> tuple[FilePart, FilePart]:
    top = index_of(file[-FOOTER_BYTES:])
    return whole_index(file[top.offset : top.end], top), top


def blocks_in(file: bytes, start: bytes, end: bytes) -> FilePart:
    whole, top = index_in(file)
    return blocks_of(file[whole.offset : whole.end], whole, top, start, end)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "most"), [(1, 2), (2, 40), (3, 300)])
def test_an_index_of_two_levels_names_the_blocks_that_one_of_one_level_names(
    seed: int, most: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    keys = sorted({rng.choice((b"", b"common" * 8)) + rng.randbytes(rng.randint(1, most)) for _ in range(500)})
    one, two = (file_of(tmp_path / str(levels), keys, levels) for levels in (1, 2))
    whole, top = index_in(one)
    assert whole == top
    whole, top = index_in(two)
    assert whole.offset < top.offset - 2 * BLOCK_BYTES
    ranges = [(b"", b"\xff" * 400), (b"", keys[0]), (keys[-1] + b"x", b"\xff" * 400)]
    for _ in range(60):
        start = rng.choice((rng.choice(keys), rng.randbytes(2)))
        ranges.append((start, max(start + b"\0", rng.choice((rng.choice(keys), start + b"\xff", rng.randbytes(2))))))
    for start, end in ranges:
        found = blocks_in(two, start, end)
        assert found == blocks_in(one, start, end)
        wanted = bisect_left(keys, end) - bisect_left(keys, start)
        assert (found.end > found.offset) == (start <= keys[-1])
        assert wanted == 0 or found.end - found.offset >= wanted  # bytes


def test_parts_that_do_not_end_at_the_index_are_no_layout_that_is_known(tmp_path: Path) -> None:
    """Such a file has unknown bytes between the parts and the block that names the parts."""
    file = file_of(tmp_path / "db", [number.to_bytes(4, "big") for number in range(2_000)], 2)
    _, top = index_in(file)
    with pytest.raises(UnknownLayout, match="do not end where it begins"):
        whole_index(file[top.offset : top.end], FilePart(top.offset + 1, top.end + 1))
