"""Segments against dicts: encoding, merges, rows by key group."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime.state.columns.frozen_rows import tuples_of
from barrier_runtime.state.columns.segment import (
    Segment,
    as_binary,
    chunks,
    count,
    decode,
    decode_header,
    encode,
    merged,
    within,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.keys.key_codec import encode_key
from barrier_runtime.state.keys.key_groups import key_group

GROUPS = 128
Rows = dict[tuple[Any, ...], tuple[int, float]]


def keys_of(keys: list[tuple[Any, ...]], binary: bool) -> Any:
    if not binary:
        return np.array(keys, np.int64).reshape(len(keys), -1).T if keys else np.empty((2, 0), np.int64)
    encoded = [key_group(key[:1], GROUPS).to_bytes(2, "big") + encode_key(key) for key in keys]
    return pa.array(encoded, pa.large_binary())


def segment(rows: Rows, removed: list[tuple[Any, ...]], *, base: bool = False, binary: bool = False) -> Segment:
    columns = {
        "count": np.array([count for count, _ in rows.values()], np.int64),
        "total": np.array([total for _, total in rows.values()], np.float64),
    }
    return Segment("s", 1, base, keys_of(list(rows), binary), columns, keys_of(removed, binary))


def rows_of(found: Segment) -> Rows:
    values = zip(*(column.tolist() for column in found.columns.values()), strict=True)
    return dict(zip(tuples_of(found.keys), values, strict=True))


def through_bytes(one: Segment) -> Segment:
    return decode(b"".join(encode(one, 3)), "here")


@pytest.mark.parametrize("binary", [False, True])
def test_a_segment_comes_back_from_its_bytes_as_it_was(binary: bool) -> None:
    rows: Rows = {(number - 500, number % 7): (number * 1_000_003, number / 3) for number in range(2_000)}
    one = segment(rows, [(9_999, 0), (-(2**63), 2**63 - 1)], binary=binary)
    data = b"".join(encode(one, 3))
    again = decode(data, "here")
    assert rows_of(again) == rows
    assert tuples_of(again.removed) == [(9_999, 0), (-(2**63), 2**63 - 1)]
    assert (again.state, again.key_width, again.base, again.entries) == ("s", 1, False, 2_002)
    header, _ = decode_header(data[:800], "here")
    assert (header.level, header.entries, header.base) == (3, 2_002, False)


@pytest.mark.parametrize("binary", [False, True])
def test_a_segment_without_rows_comes_back_too(binary: bool) -> None:
    empty = segment({}, [(1, 2)], binary=binary)
    assert rows_of(through_bytes(empty)) == {}
    assert tuples_of(through_bytes(empty).removed) == [(1, 2)]
    assert count(through_bytes(segment({(1, 2): (3, 4.0)}, [], binary=binary)).removed) == 0


def test_texts_and_their_columns_keep_their_values() -> None:
    rows: Rows = {
        ("", 1): (1, 0.0),
        ("ä\0", 2): (2, -1.5),
        (None, True): (3, 1e300),
        ("x" * 1_000, 2**64 - 1): (4, 2.0),
    }
    assert rows_of(through_bytes(segment(rows, [], binary=True))) == rows


@pytest.mark.parametrize("binary", [False, True])
def test_damaged_bytes_are_refused(binary: bool) -> None:
    whole = b"".join(encode(segment({(1, 2): (3, 4.0), (5, 6): (7, 8.0)}, [], binary=binary), 0))
    decode(whole, "here")
    for damaged in (
        b"",
        whole[:10],
        whole[:40],
        whole[:-1],
        whole + b"x",
        b"x" + whole[1:],
        whole.replace(b'"s"', b'"s,'),
    ):
        with pytest.raises(Corrupt, match="segment of state here is not readable"):
            decode(damaged, "here")


def test_a_segment_of_a_later_release_is_refused_with_the_remedy() -> None:
    """B6"""
    whole = b"".join(encode(segment({(1, 2): (3, 4.0)}, []), 0))
    for later in (b"2", b"17"):
        with pytest.raises(InvalidJob, match=f"here has version {later.decode()}, this release reads 1: a newer rel"):
            decode(whole.replace(b"barrier-segment-1", b"barrier-segment-" + later), "here")


@pytest.mark.parametrize("kinds", [[False], [True], [False, True]])
@pytest.mark.parametrize("base", [False, True])
def test_merged_segments_say_what_they_said_one_after_the_other(kinds: list[bool], base: bool) -> None:
    draw = random.Random(5)
    for _ in range(60):
        live: Rows = {}
        gone: set[tuple[Any, ...]] = set()
        parts = []
        for step in range(draw.randint(1, 6)):
            rows: Rows = {
                (draw.randrange(30), draw.randrange(2)): (step, draw.random()) for _ in range(draw.randrange(9))
            }
            begins = draw.random() < 0.2
            if begins:
                live, gone = {}, set()
            known = [key for key in live if key not in rows]
            removed = [] if begins else draw.sample(known, draw.randint(0, len(known)))
            parts.append(segment(rows, removed, base=begins, binary=draw.choice(kinds)))
            for key in removed:
                del live[key]
            gone = (gone | set(removed)) - set(rows)
            live.update(rows)
        whole = merged(parts, GROUPS, base)
        assert rows_of(whole) == live
        assert set(tuples_of(whole.removed)) == (set() if base else gone)
        assert whole.base == base
        assert rows_of(through_bytes(whole)) == live


@pytest.mark.parametrize("binary", [False, True])
def test_each_row_belongs_to_the_key_group_of_its_key(binary: bool) -> None:
    rows: Rows = {(number, 0): (number, 0.0) for number in range(1_000)}
    one = segment(rows, [(number, 1) for number in range(1_000, 1_100)], binary=binary)
    found: Rows = {}
    removed: list[tuple[Any, ...]] = []
    for first, last in ((0, 40), (41, 41), (42, 127)):
        part = within(one, first, last, GROUPS)
        assert all(first <= key_group(key[:1], GROUPS) <= last for key in [*rows_of(part), *tuples_of(part.removed)])
        found |= rows_of(part)
        removed += tuples_of(part.removed)
    assert found == rows
    assert len(removed) == 100


def test_ints_as_binary_are_the_same_keys() -> None:
    keys = [(-5, 3), (2**63 - 1, -(2**63)), (0, 0)]
    assert as_binary(keys_of(keys, False), 1, GROUPS).to_pylist() == keys_of(keys, True).to_pylist()


def test_pieces_are_read_as_the_whole() -> None:
    rows: Rows = {(number, 0): (number, 0.5) for number in range(10)}
    for size in (1, 3, 10, 11):
        cut = chunks(segment(rows, [], base=True), size)
        assert [chunk.base for chunk in cut] == [True] + [False] * (len(cut) - 1)
        assert max(chunk.entries for chunk in cut) <= size
        assert rows_of(merged([segment({(99, 9): (1, 1.0)}, []), *cut], GROUPS, True)) == rows
    delta = chunks(segment(rows, [(50, 0)]), 4)
    assert [tuples_of(chunk.removed) for chunk in delta] == [[(50, 0)], [], []]
