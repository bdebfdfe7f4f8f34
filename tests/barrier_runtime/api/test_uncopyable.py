"""Functions that refer to objects that cannot be sent to another process: the message names the step and the variable.

`explain` warns; on Spark an error before the start; a run in one process needs no copy.
"""

import abc
import enum
import io
import logging
import re
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import pyarrow as pa
import pydantic
import pytest
from pyspark import cloudpickle

from barrier_runtime import CallableSink, CollectSink, Dataflow, InvalidJob, JobFailed, JsonlSink
from barrier_runtime.operators.uncopyable import uncopyable

LOCK = threading.Lock()


def flow_with(function: Callable[[Any], Any], sink: Any) -> Dataflow:
    flow = Dataflow("numbers")
    flow.rate("rate", 1_000_000, 3, keys=1).map(function, name="locked").sink("out", sink)
    return flow


def closing_over(lock: Any) -> Callable[[Any], Any]:
    def label(row: Any) -> Any:
        with lock:
            return row

    return label


class WithAttribute:
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __call__(self, row: Any) -> Any:
        with self.lock:
            return row

    def method(self, row: Any) -> Any:
        return self(row)


def inner_class() -> Any:
    class Held:
        file = io.TextIOWrapper(io.BytesIO())

    return Held


@pytest.mark.slow
def test_explain_warns_with_step_and_variable_and_a_run_in_one_process_does_not() -> None:
    out = CollectSink()  # cannot be copied either, and is not to
    with pytest.warns(UserWarning, match=r"step 'locked': its function refers to `lock` of closing_over.*, a _thread"):
        flow_with(closing_over(threading.Lock()), out).explain()
    with pytest.warns(UserWarning, match="step 'locked': its function refers to `lock` of WithAttribute") as told:
        flow_with(WithAttribute(threading.Lock()), out).explain()
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        flow_with(closing_over(threading.Lock()), out).run_local()
        flow_with(WithAttribute(threading.Lock()), out).start_local().wait(60)
    assert len(out.rows()) == 6


def test_what_can_be_copied_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        flow_with(lambda row: row, CollectSink()).explain()


def test_a_run_on_spark_is_refused_with_step_and_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"operator 'locked' cannot be sent .* `lock` of closing_over"):
        flow_with(closing_over(threading.Lock()), JsonlSink(str(tmp_path / "out"))).run(checkpoints=str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (partial(print, function=closing_over(LOCK)), "`lock` of closing_over.<locals>.label(), a _thread.lock"),
        (WithAttribute(LOCK).method, "`lock` of WithAttribute, a _thread.lock"),
        ([{"a": closing_over(row for row in ())}], "`lock` of closing_over.<locals>.label(), a generator"),
        (inner_class(), "`file` of class Held, a _io.TextIOWrapper"),
        (closing_over({"kept": [LOCK]}), "`lock` of closing_over.<locals>.label(), a _thread.lock"),
        (WithAttribute, ""),  # another process imports the class
        (closing_over([1, "a", None, b"x"]), ""),
        (test_what_can_be_copied_is_not_warned_of, ""),  # the globals of the function's module are not sent
    ],
)
def test_the_variable_is_found(value: Any, told: str) -> None:
    assert uncopyable(value) == told


def test_what_cloudpickle_copies_in_ways_of_its_own_is_not_told() -> None:
    class Shape(abc.ABC):
        sides = {"a": 1}

        @property
        @abc.abstractmethod
        def area(self) -> int: ...

    class Square(Shape):
        @classmethod
        def of(cls) -> Any:
            return cls()

        @property
        def area(self) -> int:
            return 1

    class Row(pydantic.BaseModel):
        at: int

    class Answers(Protocol):
        def answer(self) -> int: ...

    class Colour(enum.Enum):
        RED = "red"

    of_the_program = [
        Square, Square.of, Square(), Row, Row(at=1), Answers, Colour, Colour.RED, re.compile("a+"),
        memoryview(b"a"), Shape.sides.keys(), Shape.sides.items(), logging.getLogger("a"), WeakSet(), TypeVar("V"),
    ]  # fmt: skip
    for value in of_the_program:
        cloudpickle.dumps(value)
        assert uncopyable(closing_over(value)) == ""


def test_what_refers_to_itself_is_looked_at_once() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert uncopyable(closing_over(ring)) == ""


class Owner:
    """Object of each kind that subtasks copy, with a lock."""

    guarantee = "at_least_once"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def process(self, row: Any, ctx: Any) -> Any:
        yield row

    def fetch_many(self, keys: list[Any]) -> list[Any]:
        return [{"found": 1} for _ in keys]

    def take(self, rows: pa.RecordBatch) -> None:
        """Does nothing."""


@pytest.mark.filterwarnings("ignore:step .* refers to")
@pytest.mark.parametrize(
    ("place", "named"),
    [("sink", "sink 'out': .* CallableSink"), ("process", "process 'step': .* Owner"), ("lookup", "lookup 'step'")],
)
def test_object_that_subtasks_cannot_copy_is_named_with_its_variable(place: str, named: str) -> None:
    flow, owner = Dataflow("numbers"), Owner()
    rows = flow.rate("rate", 1_000_000, 3, keys=1)
    if place == "process":
        rows = rows.process("step", owner, schema=rows.schema)
    if place == "lookup":
        rows = rows.lookup("step", owner, key="key", schema={"found": int})
    rows.sink("out", CallableSink(owner.take) if place == "sink" else CollectSink())
    with pytest.raises(JobFailed, match=rf"{named}.*`lock` of .*, a _thread.lock\) raised TypeError: .*\. Make what"):
        flow.run_local()
