"""Bloom filters and their hashes: no false negatives, rare false positives, and expiry of whole buckets."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.operators.deduplication.bloom import BloomFilter, Hashed, TimeBuckets, hash_rows
from tests.drawn import examples


def ids(first: int, last: int) -> Hashed:
    return Hashed.of(hash_rows([pa.array(range(first, last), pa.int64())]))


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize("count", [1, 1_536, 1_537, 100_000])
def test_what_was_added_is_always_found_and_few_strangers_are(count: int) -> None:
    full = BloomFilter(count)
    full.add(ids(0, count))
    assert full.may_have(ids(0, count)).all()
    filled = BloomFilter(count)
    filled.add(ids(0, filled.capacity))
    strangers = filled.may_have(ids(10**9, 10**9 + 100_000))
    assert strangers.mean() < 0.005


def test_an_empty_filter_has_nothing() -> None:
    assert not BloomFilter(10).may_have(ids(0, 1_000)).any()
    assert not TimeBuckets().may_have(ids(0, 1_000)).any()


@pytest.mark.slow
def test_a_bucket_grows_with_what_is_added_and_stays_nearly_as_exact() -> None:
    buckets = TimeBuckets()
    for start in range(0, 200_000, 500):
        buckets.add(1, ids(start, start + 500))
    assert buckets.ids == 200_000
    assert buckets.may_have(ids(0, 200_000)).all()
    assert buckets.may_have(ids(10**9, 10**9 + 100_000)).mean() < 0.01
    assert buckets.bytes < 12 * 200_000


def test_a_bucket_begins_with_room_for_as_many_ids_as_the_last_one_had() -> None:
    buckets = TimeBuckets()
    buckets.add(1, ids(0, 100_000))
    before = buckets.bytes
    buckets.add(2, ids(100_000, 100_001))
    grown = buckets.bytes
    assert grown >= 2 * before
    buckets.add(2, ids(100_001, 200_000))
    assert buckets.bytes == grown


@pytest.mark.parametrize("at_once", [500, 100_000])
def test_bucket_past_its_bytes_still_takes_ids_and_says_perhaps_more_often(at_once: int) -> None:
    most = 64 << 10
    buckets = TimeBuckets(most)
    for start in range(0, 100_000, at_once):
        buckets.add(1, ids(start, start + at_once))
    assert most / 2 <= buckets.bytes <= most
    assert buckets.may_have(ids(0, 100_000)).all()
    strangers = buckets.may_have(ids(10**9, 10**9 + 10_000)).mean()
    assert 0.05 < strangers < 0.9, "four times as many ids as it is for: some look-ups are still saved"
    buckets.add(2, ids(0, 10))
    assert buckets.bytes <= 2 * most
    assert TimeBuckets(0).bytes == 0


def test_dropped_buckets_are_forgotten_and_the_others_are_not() -> None:
    buckets = TimeBuckets()
    for bucket in range(3):
        buckets.add(bucket, ids(1_000 * bucket, 1_000 * (bucket + 1)))
    buckets.drop_below(2)
    assert buckets.may_have(ids(2_000, 3_000)).all()
    assert buckets.may_have(ids(0, 2_000)).mean() < 0.01
    assert buckets.ids == 1_000


def test_a_moved_bucket_is_dropped_by_its_new_number() -> None:
    buckets = TimeBuckets()
    buckets.add(-5, ids(0, 10))
    buckets.move(-5, 7)
    buckets.drop_below(7)
    assert buckets.may_have(ids(0, 10)).all()
    buckets.drop_below(8)
    assert buckets.ids == 0


# ---------------------------------------------------------------- hashes

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "float64": (pa.float64(), st.floats(allow_nan=False, width=32).map(lambda x: x + 0.0)),
    "string": (pa.string(), st.text(max_size=30)),
    "large_string": (pa.large_string(), st.text(max_size=300)),
    "binary": (pa.binary(), st.binary(max_size=20)),
}


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(data=st.data())
def test_equal_values_have_equal_hashes_wherever_they_stand_and_others_do_not(kind: str, data: st.DataObject) -> None:
    type_, values = KINDS[kind]
    rows = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=20))
    start = data.draw(st.integers(0, len(rows) - 1))
    whole = hash_rows([pa.array(rows, type_)])
    sliced = hash_rows([pa.array(rows, type_).slice(start)])
    assert whole[start:].tolist() == sliced.tolist()
    by_value: dict[Any, int] = {}
    for value, hashed in zip(rows, whole.tolist(), strict=True):
        assert by_value.setdefault(value, hashed) == hashed
    assert len(set(by_value.values())) == len(by_value)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 36, 255, 256, 257, 1_000])
def test_every_byte_of_a_text_counts(length: int) -> None:
    texts = [b"a" * at + b"b" + b"a" * (length - at - 1) for at in range(length)]
    texts += [b"a" * length, b"a" * length + b"\0", b"a" * (length + 1)]
    assert len(set(hash_rows([pa.array(texts, pa.binary())]).tolist())) == len(texts)


def test_the_order_of_columns_counts_and_null_is_neither_empty_nor_zero() -> None:
    a, b = pa.array(["x", "y", None, ""]), pa.array(["y", "x", "", None])
    assert not np.isin(hash_rows([a, b]), hash_rows([b])).any()
    assert (hash_rows([a, b]) != hash_rows([b, a])).all()
    assert len(set(hash_rows([pa.array([None, 0, 1], pa.int64())]).tolist())) == 3


@pytest.mark.slow
def test_a_million_texts_have_a_million_hashes() -> None:
    texts = pa.array([f"order-{number:08d}" for number in range(1_000_000)])
    assert len(np.unique(hash_rows([texts]))) == 1_000_000


def test_no_rows_have_no_hashes() -> None:
    assert len(hash_rows([pa.array([], pa.string())])) == 0
    assert (
        hash_rows([pa.array([None, None], pa.string())]).tolist().count(hash_rows([pa.nulls(1, pa.string())])[0]) == 2
    )
