"""The runtime's own functions in Arrow's engine: columns cut anywhere, few and many texts, another process."""

import datetime
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.sql.kernels import how_many, part, time_text
from tests.evaluated import evaluated

TEXTS = st.lists(st.none() | st.text("ab/é", max_size=70), max_size=30)
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
PATTERNS = {"HH:mm": "%H:%M", "yyyy-MM-dd": "%Y-%m-%d", "ss": "%S", "dd.MM HH": "%d.%m %H", "mm mm": "%M %M"}


def of(column: pa.Array, expression: pc.Expression) -> list[Any]:
    (found,) = evaluated(pa.RecordBatch.from_arrays([column], ["c"]), expression)
    found.validate(full=True)
    values: list[Any] = found.to_pylist()
    return values


def split(text: str | None, separator: str, number: int) -> str | None:
    if text is None:
        return None
    parts = text.split(separator)
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


@given(texts=TEXTS, cut=st.integers(0, 5), separator=st.sampled_from(["/", "a", "aa", "ab", "aba", "é"]),
       number=st.sampled_from([1, 2, 3, -1, -2]), times=st.sampled_from([1, 300]))  # fmt: skip
def test_parts_of_texts_are_those_of_python(
    texts: list[str | None], cut: int, separator: str, number: int, times: int
) -> None:
    texts = texts * times
    column = pa.array(texts, pa.string())[cut:]
    assert of(column, part(pc.field("c"), separator, number)) == [split(t, separator, number) for t in texts[cut:]]


@given(texts=TEXTS, cut=st.integers(0, 5), letter=st.sampled_from("ab/"))
def test_letters_are_counted_as_python_does(texts: list[str | None], cut: int, letter: str) -> None:
    column = pa.array(texts, pa.string())[cut:]
    assert of(column, how_many(pc.field("c"), letter)) == [
        None if text is None else text.count(letter) for text in texts[cut:]
    ]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("pattern", PATTERNS)
@given(seed=st.integers(0, 1 << 30))
def test_times_of_one_moment_and_of_many_have_their_own_text(unit: str, pattern: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    spread = random.choice([1, 60, 3_600, 86_400, 10_000_000])
    first = random.choice([0, -1_000_000_000, 1_000_000_000, -spread // 2])
    numbers = [int((first + spread * each) * UNITS[unit]) for each in random.random(random.choice([0, 5, 700]))]
    numbers = numbers if random.random() < 0.3 else sorted(numbers)
    absent = random.choice([0.0, 0.2, 1.0])
    times = [None if random.random() < absent else number for number in numbers]
    column = pa.array(times, pa.timestamp(unit))[random.integers(0, 4) :]
    epoch = datetime.datetime(1970, 1, 1)
    assert of(column, time_text(pc.field("c"), unit, pattern)) == [
        None if t is None else (epoch + datetime.timedelta(seconds=t // UNITS[unit])).strftime(PATTERNS[pattern])
        for t in column.cast(pa.int64()).to_pylist()
    ]


@pytest.mark.slow
def test_an_expression_that_was_pickled_is_known_in_another_process() -> None:
    program = (
        "import pickle, sys, pyarrow as pa\n"
        "expression = pickle.loads(sys.stdin.buffer.read())\n"
        "from barrier_runtime.data.expressions import evaluate\n"
        "print(evaluate(pa.record_batch({'c': ['a/b']}), [expression], 'test')[0].to_pylist())\n"
    )
    pickled = pickle.dumps(part(pc.field("c"), "/", 2))
    assert subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True).stdout == (
        b"['b']\n"
    )
