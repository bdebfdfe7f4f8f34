"""Hints for names of other systems and for misspelt names."""

from collections.abc import Callable
from typing import Any

import pytest

from barrier_runtime import BroadcastState, InvalidJob, ListState, MapState, UserCodeError, ValueState
from barrier_runtime.operators.functions.row_functions import RowContext
from barrier_runtime.operators.user_code import said
from barrier_runtime.testing import KeyedHarness

USES: list[tuple[Callable[[Any, Any], Any], str]] = [
    (
        lambda self, ctx: ctx.register_timer(5),
        r"ctx has no 'register_timer': timers of event time are ctx.timers",
    ),
    (lambda self, ctx: ctx.timer_service(), r"ctx has no 'timer_service': timers of event time are ctx.timers"),
    (lambda self, ctx: ctx.register_processing_time_timer(5), r"timers by the wall clock are ctx.wall_timers: after\("),
    (
        lambda self, ctx: ctx.output("x", {}),
        r"yield the row \(or return it\) for the main output",
    ),
    (lambda self, ctx: ctx.timestmp, r"ctx has no 'timestmp': is ctx.timestamp meant\?"),
    (lambda self, ctx: ctx.something, r"ctx has no 'something': it has emit, key, metrics, operator"),
    (
        lambda self, ctx: self.seen.put(1, 2),
        r"self.seen is a MapState, which has no put: change it with",
    ),
    (lambda self, ctx: self.seen.remove(1), r"self.seen is a MapState, which has no remove"),
]


@pytest.mark.parametrize(("use", "said"), USES)
def test_a_name_that_is_not_there_says_where_to_look(use: Callable[[Any, Any], Any], said: str) -> None:
    class Function:
        seen = MapState(int, int)

        def process(self, key: int, row: dict[str, Any], ctx: Any) -> Any:
            use(self, ctx)

    with KeyedHarness(Function, key="k") as harness, pytest.raises(UserCodeError, match=said):
        harness.push({"k": 1})


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda: ValueState("int"),
            r"ValueState\('int'\): pass the type itself.*ValueState\(int\)",
        ),
        (lambda: ListState("Order"), r"as in ListState\(Order\)"),
        (lambda: MapState("str", int), r"MapState\('str', …\): pass the type itself and not its name"),
        (lambda: BroadcastState(str, "int"), r"as in BroadcastState\(int\)"),
    ],
)
def test_the_name_of_a_type_in_place_of_the_type_is_told(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        declare()


def test_what_belongs_to_a_key_is_told_where_there_is_none() -> None:
    ctx = RowContext.__new__(RowContext)
    with pytest.raises(AttributeError) as raised:
        ctx.timers  # type: ignore[attr-defined]  # noqa: B018
    assert "ctx has no 'timers', which belongs to a key: call .key_by" in said(raised.value)
    with pytest.raises(AttributeError) as raised:
        ctx.emitt  # type: ignore[attr-defined]  # noqa: B018
    assert "'emitt': is ctx.emit meant" in said(raised.value)
