"""The compact set of names against a plain dictionary, and the memory limit."""

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.name_set import (
    RECORD_BYTES,
    UNKNOWN_SIZE,
    UNMARKED,
    Known,
    NameSet,
    SortedRun,
    hash_of,
    merged,
    value_of,
)
from tests.drawn import examples

NAMES = st.text(max_size=12) | st.sampled_from([f"part-{n:05d}.parquet" for n in range(50)])


def compacted(names: NameSet) -> NameSet:
    while window := names.to_merge():
        names.replace(window, merged([run.data for run in window]))
    return names


def spark_like(count: int) -> list[str]:
    draw = random.Random(count)
    return [f"part-{n:05d}-{uuid.UUID(int=draw.getrandbits(128))}-c000.snappy.parquet" for n in range(count)]


@pytest.mark.slow
@examples(200)
@given(
    st.lists(
        st.one_of(
            st.tuples(NAMES, st.none() | st.integers(0, 2**41), st.integers(0, 2**24 - 1)),
            st.sampled_from(["freeze", "merge", "absorb", "copy"]),
        ),
        max_size=120,
    ),
    st.lists(NAMES, max_size=20),
)
def test_it_has_what_was_added_with_the_last_size_and_mark_and_nothing_else(
    steps: list[tuple[str, int | None, int] | str], others: list[str]
) -> None:
    names = NameSet()
    model: dict[str, Known] = {}
    for step in steps:
        if isinstance(step, tuple):
            names.add(*step)
            model[step[0]] = Known(UNKNOWN_SIZE if step[1] is None else min(step[1], UNKNOWN_SIZE), step[2])
        elif step == "freeze":
            names.freeze(1)
        elif step == "merge":
            compacted(names)
        elif step == "absorb":
            names.absorb()
        else:
            names.add("only in the one that was copied", 1)
            names = names.copy() if "only in the one that was copied" in model else names
            model["only in the one that was copied"] = Known(1, UNMARKED)
    for name in {*model, *others}:
        known = model.get(name)
        assert names.find(name) == known
        assert names.size_of(name) == (known.size if known is not None else None)
    stored = merged([*(run.data for run in names.runs), names.added()])
    assert len(stored) == len(model)
    for parallelism in (1, 3):
        shares = [stored.share(part, parallelism) for part in range(parallelism)]
        assert sum(len(mine) for mine, _ in shares) == len(model)
        for mine, rest in shares:
            assert all(NameSet([mine], [rest]).find(name) == known for name, known in model.items())


def test_a_copy_does_not_hear_what_is_added_later() -> None:
    names = NameSet()
    names.add("a", 1)
    other = names.copy()
    names.add("b", 2)
    other.add("c", 3)
    assert ["b" in other, "c" in names, "a" in other] == [False, False, True]


def test_the_same_names_in_another_order_make_the_same_run() -> None:
    names = spark_like(3_000)
    one, other = NameSet(), NameSet()
    for name in names:
        one.add(name, len(name))
    for name in reversed(names):
        other.add(name, len(name))
    one.freeze()
    other.freeze()
    assert one.runs[0].data == other.runs[0].data


def test_a_hash_that_lies_across_two_records_is_not_found() -> None:
    """Records are searched as bytes: a match that does not begin at a record's start is ignored."""
    value = b"\x06\x07\x08\x09\x0a\x0b\x0c\x0d"
    run = merged([bytes(range(11)) + value, bytes(RECORD_BYTES)])
    assert run.find(bytes(range(11))) == value
    assert SortedRun(bytes(2 * RECORD_BYTES)).find(bytes(11)) == bytes(8)
    assert run.find(bytes(range(1, 11)) + b"\x06") is None


@pytest.mark.slow
def test_300_000_names_take_19_bytes_each_in_few_runs_with_few_writes_each() -> None:
    names, written, count = NameSet(), 0, 300_000
    for n, name in enumerate(spark_like(count)):
        names.add(name, n)
        if names.freeze():
            written += len(names.runs[-1])
            while window := names.to_merge():
                run = merged([run.data for run in window])
                written += len(run)
                names.replace(window, run)
    assert len(names) == count
    assert len(names.runs) <= 20
    assert sum(len(run.data) for run in names.runs) + len(names.added()) <= 19 * count
    assert written <= 8 * count
    everything = merged([*(run.data for run in names.runs), names.added()])
    assert len(everything) == count
    for n, name in enumerate(spark_like(count)):
        if n % 997 == 0:
            assert names.size_of(name) == n
            assert everything.find(hash_of(name)) == value_of(n)
    assert not any(f"other-{n}" in names for n in range(10_000))
