"""A generator of typed rows that waits, on Spark: rows are committed during the wait, and slots stay."""

import json
import time
from dataclasses import dataclass

import pytest
from harness import visible_files

from barrier_runtime import Dataflow, JsonlSink

pytestmark = pytest.mark.spark


def numbers_visible(folder):
    files = [folder / name for name in visible_files(folder)] if folder.exists() else []
    return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


def test_rows_are_committed_on_spark_while_the_generator_waits_for_that(spark, tmp_path):
    out = tmp_path / "out"

    @dataclass
    class Number:
        n: int

    def slowly(index, of):
        for n in range(4):
            yield Number(n)
            deadline = time.monotonic() + 240
            while n not in numbers_visible(out):
                assert time.monotonic() < deadline, f"row {n} is not visible while the generator waits"
                time.sleep(0.01)

    flow = Dataflow("waiting")
    numbers = flow.from_iterator("src", slowly, schema=Number, splits=1)
    halves = numbers.map(lambda number: Number(number.n * 2), schema=Number).filter(lambda number: number.n >= 0)
    summed = halves.key_by("n").process("half", lambda key, number, ctx: Number(number.n // 2), schema=Number)
    summed.sink("out", JsonlSink(str(out)))
    result = flow.run(spark=spark, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.1, parallelism=2)
    assert numbers_visible(out) == [0, 1, 2, 3]
    assert len(result.status.recoveries) == 1  # the start
