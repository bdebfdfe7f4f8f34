"""The hash of key groups: fixed for ever, and equal for single keys and columns."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys import key_groups
from barrier_runtime.state.keys.key_groups import (
    check_max_parallelism,
    hash_field,
    key_group,
    key_group_range,
    key_groups_of,
    key_groups_of_int64,
    key_groups_of_keys,
    splitmix64,
)
from tests.drawn import examples

UTC = dt.timezone.utc

# Fixed values: if one of them changes, the wrong subtask reads state of earlier versions.
HASHES: list[tuple[Any, int]] = [
    (None, 0x9E3779B97F4A7C15),
    (0, 0xE220A8397B1DCDAF),
    (1, 0x910A2DEC89025CC1),
    (-1, 0xE4D971771B652C20),
    (False, 0xE220A8397B1DCDAF),
    (True, 0x910A2DEC89025CC1),
    (2**63 - 1, 0x2A67D7552E039EA7),
    (2**64 - 1, 0xE4D971771B652C20),
    (0.0, 0xE220A8397B1DCDAF),
    (-0.0, 0xE220A8397B1DCDAF),
    (1.5, 0xD6DAB18E1392608A),
    (float("nan"), 0xC72971D82E15BB46),
    ("", 0xE220A8397B1DCDAF),
    ("JFK", 0x25E9FE395C6DBA91),
    ("Zürich", 0xB0BAC30019694CD8),
    (b"JFK", 0x25E9FE395C6DBA91),
    (dt.date(1970, 1, 2), 0x910A2DEC89025CC1),
    (dt.date(1969, 12, 31), 0xE4D971771B652C20),
    (dt.datetime(1970, 1, 1, 0, 0, 0, 1), 0x910A2DEC89025CC1),
    (dt.datetime(2013, 1, 1, 5, 15), 0x1AE01F79E3542EE2),
    (dt.datetime(2013, 1, 1, 5, 15, tzinfo=UTC), 0x1AE01F79E3542EE2),
]
GROUPS: list[tuple[tuple[Any, ...], int, int]] = [
    ((0,), 128, 113),
    ((1,), 128, 72),
    (("JFK",), 128, 18),
    (("JFK", "UA"), 128, 67),
    (("UA", "JFK"), 128, 54),
    (("JFK", None), 128, 44),
    ((12345, "x", 1.5), 32_768, 26054),
    ((7,), 1, 0),
]


@pytest.mark.parametrize(("value", "expected"), HASHES)
def test_the_hash_of_a_field_is_what_it_always_was(value: Any, expected: int) -> None:
    assert hash_field(value) == expected


@pytest.mark.parametrize(("key", "max_parallelism", "expected"), GROUPS)
def test_the_key_group_of_a_key_is_what_it_always_was(
    key: tuple[Any, ...], max_parallelism: int, expected: int
) -> None:
    assert key_group(key, max_parallelism) == expected


def test_splitmix64_is_the_published_one() -> None:
    state, found = 1234567, []
    for _ in range(3):
        found.append(splitmix64(state))
        state += 0x9E3779B97F4A7C15
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


_times = st.datetimes(dt.datetime(1677, 10, 1), dt.datetime(2262, 1, 1))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "float64": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    "large_string": (pa.large_string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    "binary": (pa.binary(), st.binary(max_size=8)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date32": (pa.date32(), st.dates()),
    "date64": (pa.date64(), st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1))),
    "timestamp us": (pa.timestamp("us"), _times),
    "timestamp ms": (pa.timestamp("ms"), _times.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    "timestamp s": (pa.timestamp("s"), _times.map(lambda t: t.replace(microsecond=0))),
    "timestamp us utc": (pa.timestamp("us", "UTC"), _times.map(lambda t: t.replace(tzinfo=UTC))),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "ü", ""])),
    "null": (pa.null(), st.none()),
}


@st.composite
def _columns(draw: st.DrawFn) -> list[pa.Array]:
    rows = draw(st.integers(0, 12))
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    columns = []
    for kind in kinds:
        arrow_type, values = COLUMNS[kind]
        items = draw(st.lists(st.one_of(st.none(), values), min_size=rows, max_size=rows))
        columns.append(pa.array(items, arrow_type))
    return columns


@pytest.mark.slow
@examples(300)
@given(_columns(), st.sampled_from([1, 2, 10, 128, 1_000, 32_768]))
def test_one_key_and_whole_columns_always_agree(columns: list[pa.Array], max_parallelism: int) -> None:
    rows = list(zip(*[column.to_pylist() for column in columns], strict=True))
    expected = [key_group(row, max_parallelism) for row in rows]
    assert key_groups_of(columns, max_parallelism).tolist() == expected
    many = [pa.concat_arrays([column] * 60) for column in columns]  # large batches use other code
    assert key_groups_of(many, max_parallelism).tolist() == expected * 60
    if rows:
        assert key_groups_of_keys([(*row, "namespace") for row in rows], len(columns), max_parallelism) == expected


@examples(50)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 32_768))
def test_the_fast_path_for_plain_integers_agrees_too(values: list[int], max_parallelism: int) -> None:
    found = key_groups_of_int64(np.array(values, np.int64), max_parallelism)
    assert found.tolist() == [key_group((value,), max_parallelism) for value in values]


def test_long_columns_of_strings_agree_with_short_ones_and_slices_with_copies() -> None:
    texts = [None if row % 97 == 0 else f"key-{row % 700}" for row in range(5_000)]
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        column = pa.array([text if text is None or kind != pa.binary() else text.encode() for text in texts], kind)
        long = key_groups_of([column], 128).tolist()
        assert long == [key_group((value,), 128) for value in column.to_pylist()]
        assert key_groups_of([column.slice(1_000, 37)], 128).tolist() == long[1_000:1_037]
        assert key_groups_of([column.dictionary_encode()], 128).tolist() == long
    distinct = pa.array([f"key-{row}" for row in range(2_000)])
    assert key_groups_of([distinct], 128).tolist() == [key_group((value,), 128) for value in distinct.to_pylist()]
    assert key_groups_of([pa.chunked_array([distinct[:10], distinct[10:]])], 128).tolist()[:20] == [
        key_group((value,), 128) for value in distinct.to_pylist()[:20]
    ]


def test_more_keys_than_are_remembered_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.state.keys.key_groups._REMEMBERED_KEYS", 50)
    for start in range(0, 400, 20):
        columns = [pa.array(range(start, start + 20)), pa.array([f"x{n % 3}" for n in range(20)])]
        rows = zip(*[column.to_pylist() for column in columns], strict=True)
        assert key_groups_of(columns, 77).tolist() == [key_group(row, 77) for row in rows]


def test_equal_keys_of_different_types_are_not_mixed_up() -> None:
    for values in ([1, 0], [True, False], [1.0, 0.0]):
        column = pa.array(values)
        assert key_groups_of([column], 128).tolist() == [key_group((value,), 128) for value in values]


def test_a_nanosecond_timestamp_counts_by_its_microseconds() -> None:
    column = pa.array([1_999, -1], pa.timestamp("ns"))
    microseconds = [dt.datetime(1970, 1, 1, 0, 0, 0, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]
    assert key_groups_of([column], 128).tolist() == [key_group((moment,), 128) for moment in microseconds]


def test_numpy_scalars_and_subclasses_hash_like_plain_values() -> None:
    assert hash_field(np.int64(5)) == hash_field(5)
    assert hash_field(np.str_("a")) == hash_field("a")

    class Text(str):
        pass

    assert hash_field(Text("a")) == hash_field("a")


def test_what_cannot_be_a_key_is_refused_with_its_type() -> None:
    with pytest.raises(InvalidJob, match="Decimal cannot be a key"):
        key_group((Decimal(1),), 128)
    with pytest.raises(InvalidJob, match="decimal"):
        key_groups_of([pa.array([Decimal(1)])], 128)
    with pytest.raises(InvalidJob, match="64 bits"):
        key_group((2**64,), 128)
    with pytest.raises(InvalidJob, match="valid text"):
        key_group(("\ud800",), 128)


@pytest.mark.slow
def test_keys_spread_over_all_groups() -> None:
    for column in (pa.array(range(100_000)), pa.array([f"user-{n}" for n in range(100_000)])):
        counts = np.bincount(key_groups_of([column], 128), minlength=128)
        assert counts.min() > 600
        assert counts.max() < 1_000


def test_subtasks_own_ranges_as_in_flink() -> None:
    """R1"""
    assert [key_group_range(subtask, 3, 10) for subtask in range(3)] == [(0, 3), (4, 6), (7, 9)]
    assert [key_group_range(subtask, 1, 128) for subtask in range(1)] == [(0, 127)]


@examples(100)
@given(st.integers(1, 300).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 4_000))))
def test_ranges_cover_every_group_once_and_agree_with_the_owner_of_each_group(sizes: tuple[int, int]) -> None:
    """R1"""
    parallelism, max_parallelism = sizes
    expected = 0
    for subtask in range(parallelism):
        first, last = key_group_range(subtask, parallelism, max_parallelism)
        assert first == expected
        assert last >= first
        for group in (first, last):
            assert group * parallelism // max_parallelism == subtask
        expected = last + 1
    assert expected == max_parallelism


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 128), (129, 128), (1, 0), (1, 32_769)])
def test_impossible_parallelisms_are_refused(parallelism: int, max_parallelism: int) -> None:
    with pytest.raises(InvalidJob, match="is not allowed"):
        check_max_parallelism(parallelism, max_parallelism)


def test_what_is_remembered_of_large_keys_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 200_000
    monkeypatch.setattr(key_groups, "_REMEMBERED_BYTES", most)
    monkeypatch.setattr(key_groups, "_remembered_groups", {})
    for remembered in key_groups._remembered.values():
        remembered.clear()
    keys = [f"{number:05d}" + "x" * 10_000 for number in range(100)]
    expected = [key_group((key,), 128) for key in keys]
    for at in range(0, 100, 5):
        assert key_groups_of([pa.array(keys[at : at + 5])], 128).tolist() == expected[at : at + 5]
        known = [*key_groups._remembered.values(), *filter(None, key_groups._remembered_groups.values())]
        for remembered in known:
            assert sum(len(text) for text in remembered if isinstance(text, str)) <= most
    assert key_groups_of([pa.array(keys)], 128).tolist() == expected
