"""Numbers of keys: by place in the table of frequent keys, and by hash."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from barrier_runtime.operators.aggregation import frequent_keys
from barrier_runtime.operators.aggregation.frequent_keys import FrequentKeys, Numbered

ROWS = 3 * frequent_keys._AT_ONCE + 5
KEYS = {
    "few": lambda random: random.integers(-3, 4, ROWS),
    "frequent and rare": lambda random: (1 / (1.001 - random.random(ROWS)) ** 2).astype(np.int64) - 1,
    "all at one place": lambda random: random.integers(0, 9, ROWS) << 60,
    "many": lambda random: random.integers(-(1 << 62), 1 << 62, ROWS) // 2 * random.integers(0, 2, ROWS),
}


def check(numbered: Numbered, keys: npt.NDArray[np.int64]) -> None:
    different, counts = np.unique(keys, return_counts=True)
    order = numbered.last.argsort()
    assert numbered.last.tolist() == numbered.last[order].tolist()
    found = keys[numbered.last]
    assert sorted(found.tolist()) == different.tolist()
    rows = dict(zip(different.tolist(), counts.tolist(), strict=True))
    assert numbered.of_last(numbered.rows).tolist() == [rows[key] for key in found.tolist()]
    assert numbered.rows.sum() == len(keys)
    numbers = np.arange(len(numbered.rows)) if numbered.numbers is None else numbered.numbers
    last = dict(zip(numbers.tolist(), numbered.last.tolist(), strict=True))
    assert [last[number] for number in np.unique(numbered.of_row).tolist()]
    assert np.array_equal(keys[[last[number] for number in numbered.of_row.tolist()]], keys)
    assert all((keys[row + 1 :] != keys[row]).all() for row in numbered.last[-20:].tolist())


@pytest.mark.parametrize("kind", KEYS)
def test_a_number_stands_for_one_key_in_every_batch(kind: str) -> None:
    random, frequent = np.random.default_rng(7), FrequentKeys()
    for _ in range(frequent_keys._LEARNED + 2):
        keys = KEYS[kind](random)
        check(frequent.numbered([pa.array(keys)]), keys)


def test_frequent_keys_get_places_and_lose_them() -> None:
    random, frequent = np.random.default_rng(7), FrequentKeys()
    for first in (0, 1_000):
        keys = first + random.integers(0, 50, ROWS)
        for _ in range(3 * frequent_keys._LEARNED):
            numbered = frequent.numbered([pa.array(keys)])
        assert numbered.numbers is not None
        assert numbered.numbers.max() < frequent_keys._PLACES
        check(numbered, keys)


def test_rare_keys_are_numbered_by_hash() -> None:
    random, frequent = np.random.default_rng(7), FrequentKeys()
    by_place = []
    for _ in range(2 * frequent_keys._LEARNED):
        keys = random.integers(0, 1 << 40, ROWS)
        numbered = frequent.numbered([pa.array(keys)])
        by_place.append(numbered.numbers is not None)
    check(numbered, keys)
    assert sum(by_place) <= 4
