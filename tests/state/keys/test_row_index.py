"""Row ids of keys against a dict, for int keys (a hash table in numpy) and for all other keys."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.state.keys import row_index
from barrier_runtime.state.keys.row_index import IntKeys, Key, TupleKeys, int_key_batch, tuple_keys
from tests.drawn import examples

EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 1 << 32, -(1 << 32)]
FIELD = st.one_of(st.integers(0, 60), st.sampled_from(EXTREMES))


def key_batch_of(keys: list[Key], fields: int) -> np.ndarray:
    return np.array(keys, np.int64).reshape(len(keys), fields).T


@pytest.mark.slow
@examples(60)
@given(st.integers(1, 3), st.sampled_from([None, 0, 3]), st.data())
def test_a_key_keeps_its_slot_until_it_is_removed_and_no_two_share_one(
    fields: int, known: int | None, data: st.DataObject
) -> None:
    with replaced_slowly(known):
        keys_come_and_go(fields, data)


@contextlib.contextmanager
def replaced_slowly(known: int | None) -> Iterator[None]:
    """Makes hash tables start with eight places and learn `known` row ids per call; None: as in production."""
    if known is None:
        yield
        return
    with (
        patch.object(row_index, "_FIRST_BITS", 3),
        patch.object(row_index, "_AT_ONCE_BITS", 0),
        patch.object(row_index, "_KNOWN_PER_KEY", 1),
        patch.object(row_index, "_KNOWN_AT_LEAST", known),
    ):
        yield


def keys_come_and_go(fields: int, data: st.DataObject) -> None:
    keys, expected = IntKeys(fields), dict[Key, int]()
    batches = st.lists(st.tuples(*[FIELD] * fields), max_size=60)
    for batch in data.draw(st.lists(batches, min_size=1, max_size=12)):
        if data.draw(st.booleans()):
            keys.add(key_batch_of(new := [key for key in dict.fromkeys(batch) if key not in expected], fields))
            expected.update(zip(new, keys.find(key_batch_of(new, fields)).tolist(), strict=True))
        row_ids, made = keys.place(key_batch_of(batch, fields))
        fresh = {key: row_id for key, row_id in zip(batch, row_ids.tolist(), strict=True) if key not in expected}
        assert sorted(made.tolist()) == sorted(fresh.values())
        for key, row_id in zip(batch, row_ids.tolist(), strict=True):
            assert expected.setdefault(key, row_id) == row_id
        assert len(set(expected.values())) == len(expected) == len(keys)
        gone = batch[:: data.draw(st.integers(1, 4))]
        if gone and data.draw(st.booleans()):
            keys.remove(np.unique(keys.find(key_batch_of(gone, fields))))
            expected = {key: row_id for key, row_id in expected.items() if key not in gone}
    every = keys.all()
    assert dict(zip(keys.tuples(every), every.tolist(), strict=True)) == expected
    asked = [(*[number] * fields,) for number in (*range(70), *EXTREMES)]
    found = keys.find(key_batch_of(asked, fields)).tolist()
    assert [row_id if row_id >= 0 else None for row_id in found] == [expected.get(key) for key in asked]


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "known"), [(1, None), (2, 0), (1, 3_000)])
def test_many_keys_come_and_go_in_large_batches(fields: int, known: int | None) -> None:
    with replaced_slowly(known):
        many_keys_come_and_go(fields)


def many_keys_come_and_go(fields: int) -> None:
    random, keys, expected = np.random.default_rng(5), IntKeys(fields), dict[Key, int]()
    for step in range(30):
        key_batch = random.integers(0, 40_000, (fields, 9_000)) // (1, 100)[fields - 1]
        if step % 2:
            new = [key for key in set(zip(*key_batch.tolist(), strict=True)) if key not in expected]
            expected.update(zip(new, keys.add(key_batch_of(new, fields)).tolist(), strict=True))
        for key, row_id in zip(zip(*key_batch.tolist(), strict=True), keys.place(key_batch)[0].tolist(), strict=True):
            assert expected.setdefault(key, row_id) == row_id
        if step % 4 == 3:
            gone = random.permutation(keys.all())[: int(len(keys) * random.choice([0.1, 0.4, 0.9, 1.0]))]
            for key in keys.tuples(gone):
                del expected[key]
            keys.remove(gone)
    assert len(set(expected.values())) == len(expected) == len(keys)
    key_batch = key_batch_of(list(expected), fields)
    assert keys.find(key_batch).tolist() == list(expected.values())


@pytest.mark.slow
def test_a_large_table_is_replaced_in_parts_before_it_is_full() -> None:
    """A call moves only as many row ids into the next table as its own keys require, in growing tables and in tables
    with as many removed as added keys."""
    settled = [0]
    settle = row_index._Places.settle

    def counting(places: Any, row_ids: Any, mixed: Any) -> None:
        settled[0] += len(row_ids)
        settle(places, row_ids, mixed)

    keys, most = IntKeys(1), 0
    with patch.object(row_index._Places, "settle", counting):
        for first in range(0, 600_000, 2_000):
            settled[0] = 0
            keys.place(np.arange(first, first + 2_000)[None])
            if first >= 300_000:
                keys.remove(keys.find(np.arange(first - 300_000, first - 298_000)[None]))
            most = max(most, settled[0])
    assert most <= 1 << 15, "a table of 2 ** 16 places has half of them in use"
    assert len(keys) == 300_000
    assert (keys.find(np.arange(300_000, 600_000)[None]) >= 0).all()
    assert (keys.find(np.arange(0, 300_000)[None]) < 0).all()


def test_keys_that_all_want_one_place_are_told_apart() -> None:
    """A key's first place is the shifted product with an odd number: keys that differ in its low bits collide."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    colliding = [(number * inverse + (1 << 63)) % (1 << 64) - (1 << 63) for number in range(300)]
    keys = IntKeys(1)
    row_ids, _ = keys.place(np.array([colliding]))
    assert len(set(row_ids.tolist())) == 300
    keys.remove(row_ids[:100])
    assert keys.find(np.array([colliding]))[100:].tolist() == row_ids[100:].tolist()
    assert (keys.find(np.array([colliding]))[:100] < 0).all()


def test_keys_of_ints_become_tuples_in_the_same_slots() -> None:
    keys = IntKeys(2)
    row_ids, _ = keys.place(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]))
    keys.remove(row_ids[1:2])
    tuples = tuple_keys(keys)
    assert isinstance(tuples, TupleKeys)
    assert tuples.find([(1, 5), (2, 6), (4, 8)]).tolist() == [row_ids[0], -1, row_ids[3]]
    again, made = tuples.place([("x", None), (1, 5), ("y",)])
    assert again[1] == row_ids[0]
    assert made.tolist() == [again[0], again[2]]
    assert len(tuples) == 5
    assert len({*again.tolist(), *row_ids[2:].tolist()}) == 5


@pytest.mark.parametrize(
    "keys", [[(1.0,)], [(True,)], [(None,)], [("1",)], [(1 << 63,)], [(-(1 << 63) - 1,)], [(1,), (1, 2)], [(1, 2)]]
)
def test_what_is_no_int_of_64_bits_is_no_bag_of_ints(keys: list[Key]) -> None:
    assert int_key_batch(keys, 1) is None
    assert int_key_batch([(2**63 - 1,), (-(2**63),)], 1) is not None
