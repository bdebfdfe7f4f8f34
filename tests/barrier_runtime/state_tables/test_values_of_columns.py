"""Values read by `table` are stored again as equal values, for types of every kind."""

import datetime
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ValueState, open_checkpoint, write_savepoint
from barrier_runtime.operators.state.described_types import value_type
from barrier_runtime.state_tables.arrow_columns import plain_of


class Color(enum.Enum):
    RED = "red"


class InOrder(msgspec.Struct, array_like=True):
    a: int
    b: str = "x"
    c: int | None = None


class TaggedInOrder(msgspec.Struct, array_like=True, tag="in order"):
    a: int
    b: str = "x"


class One(msgspec.Struct, tag=True):
    a: int


class Other(msgspec.Struct, tag=True):
    a: int


class Sparse(msgspec.Struct, omit_defaults=True):
    a: int = 1
    b: str = "q"


class Named(NamedTuple):
    a: int
    b: str = "z"


class Part(TypedDict, total=False):
    a: int
    b: str


class Tree(msgspec.Struct):
    n: int
    kids: list["Tree"] = []


@dataclass
class Order:
    lines: dict[str, list[tuple[int, str]]]
    at: datetime.datetime | None = None


_VALUES: list[tuple[Any, Any]] = [
    (tuple[int, str], (1, "a")),
    (int | str, "5"),
    (int | str, 5),
    (list[int | str], [1, "a"]),
    (dict[float, int], {1.5: 2}),
    (dict[tuple[int, int], str], {(1, 2): "x"}),
    (dict[bytes, int], {b"\x00": 1}),
    (dict[datetime.date, int], {datetime.date(2026, 1, 2): 3}),
    (tuple[int, bytes, bytes | None], (1, b"\xff", None)),
    (dict[str, dict[str, tuple[int, bytes]]], {"a": {"b": (1, b"q")}}),
    (dict[int, str], {1: "a"}),
    (Literal["a", 1], 1),
    (Literal["a", 1], "a"),
    (dict[str, Color], {"a": Color.RED}),
    (dict[str, int | None], {"a": None}),
    (list[Order | None], [None, Order({"x": [(1, "y")]}, None)]),
    (InOrder, InOrder(1)),
    (list[InOrder], [InOrder(1, "y", 2)]),
    (TaggedInOrder, TaggedInOrder(3, "k")),
    (One | Other, Other(4)),
    (One, One(4)),
    (Sparse, Sparse(5)),
    (Named, Named(1)),
    (Part, {"b": "x"}),
    (Tree, Tree(1, [Tree(2), Tree(3, [Tree(4)])])),
    (Any, {"z": [1, 2.5, None]}),
    (Any, "text"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "value"), _VALUES, ids=lambda one: str(one)[:40])
def test_what_a_column_gives_is_stored_as_it_was(kind: Any, value: Any, tmp_path: Path) -> None:
    class Step:
        held = ValueState(kind)

        def process(self, user: str, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
            if row["stores"]:
                self.held.value = value
            yield {"user": user, "same": self.held.value == value}

    def flow(stores: bool, sink: CollectSink) -> Dataflow:
        made = Dataflow("job")
        rows = [{"user": "ann", "stores": stores}]
        read = made.from_iterator("in", lambda part, of: rows, schema={"user": str, "stores": bool}, splits=1)
        read.key_by("user").process("step", Step, schema={"user": str, "same": bool}).sink("out", sink)
        return made

    flow(True, CollectSink()).run_local(checkpoints=tmp_path / "first", parallelism=1)
    with open_checkpoint(str(tmp_path / "first"), "job") as stored:
        given = stored.table("step", "held").read_all()
    url, out = str(tmp_path / "savepoint"), CollectSink()
    write_savepoint(url, flow=flow(False, out), states={("step", "held"): given})
    with open_checkpoint(url) as stored:
        assert stored.table("step", "held").read_all().equals(given)
    flow(False, out).run_local(checkpoints=tmp_path / "next", restore=url, parallelism=1)
    assert out.rows() == [{"user": "ann", "same": True}]


def test_text_that_should_be_json_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"'five' is no JSON, as which values of int \| str are given.*write \"x\""):
        plain_of(value_type(int | str))("five")
