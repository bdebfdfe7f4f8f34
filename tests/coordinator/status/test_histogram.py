"""Histograms of latencies, compared with the library that defines their layout and encoding."""

import random
from pathlib import Path

import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.status import latency
from barrier_runtime.coordinator.status.latency import (
    HIGHEST_US,
    INDICES,
    decode,
    highest_of,
    lowest_of,
)
from barrier_runtime.operators.metrics import encode, indices_of

COUNTS = st.dictionaries(st.integers(0, INDICES - 1), st.integers(1, 2**50), max_size=40)


def library() -> HdrHistogram:
    return HdrHistogram(1, HIGHEST_US, 3)


def index_of(us: int) -> int:
    return int(indices_of(np.array([us]))[0])


def encoded(counts: dict[int, int]) -> str:
    dense = np.zeros(INDICES, np.int64)
    for index, count in counts.items():
        dense[index] = count
    return encode(dense)


@given(st.integers(1, HIGHEST_US))
def test_a_value_has_the_index_and_the_neighbours_that_the_library_gives_it(us: int) -> None:
    theirs = library()
    index = index_of(us)
    assert theirs._counts_index_for(us) == index
    assert lowest_of(index) == theirs.get_value_from_index(index) == theirs.get_lowest_equivalent_value(us)
    assert highest_of(index) == theirs.get_highest_equivalent_value(us)
    assert theirs.counts_len == INDICES


@given(COUNTS)
def test_what_is_encoded_is_decoded(counts: dict[int, int]) -> None:
    assert decode(encoded(counts)) == counts


def test_the_library_reads_ours_and_we_read_its() -> None:
    rng, theirs, ours = random.Random(3), library(), {}
    for _ in range(3_000):
        us, rows = min(HIGHEST_US, int(rng.expovariate(1e-5)) + 1), rng.randint(1, 10**9)
        theirs.record_value(us, rows)
        index = index_of(us)
        ours[index] = ours.get(index, 0) + rows
    assert decode(theirs.encode().decode()) == ours
    read_by_them = HdrHistogram.decode(encoded(ours).encode())
    assert [read_by_them.get_count_at_index(index) for index in range(INDICES)] == [
        ours.get(i, 0) for i in range(INDICES)
    ]
    assert decode(library().encode().decode()) == {}
    assert HdrHistogram.decode(encoded({}).encode()).get_total_count() == 0


def test_what_is_damaged_is_a_value_error() -> None:
    refused = 0
    for seed in range(200):
        rng = random.Random(seed)
        text = bytearray(encoded({rng.randrange(INDICES): rng.randrange(1, 9_999) for _ in range(9)}).encode())
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        try:
            counts = decode(bytes(text[: rng.randint(0, len(text))]).decode("latin-1"))
        except ValueError:
            refused += 1
        else:  # a change that the checksum did not see is a histogram all the same
            assert all(0 <= index < INDICES for index in counts)
    assert refused > 190


def test_the_sum_is_as_long_as_its_highest_index() -> None:
    parts = [decode(encoded(counts)) for counts in ({0: 1, 3: 2}, {}, {3: 1})]
    assert latency.summed(parts) == [1, 0, 0, 3]
    assert latency.summed(parts[1:2]) == []


def test_the_package_does_not_need_the_library() -> None:
    """The library installs setuptools, pbr and a program `dump_hdrh`."""
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    assert "hdrhistogram" not in text[text.index("\ndependencies") : text.index("[project.optional-dependencies]")]
