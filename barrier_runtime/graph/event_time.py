"""Which steps follow event time row by row, and what that asks of the steps before them.

A step with timers, a TTL or early results in event time, or `deduplicate(within=…)`, follows "every" move of event
time; windows and joins look at event time where a row may be late: where a row of the source is ("late"), or, for times
that a step has changed, at all ("rows"). Steps before them keep the event time that was
reached at each row (`Batch.reached`). A step that takes a whole batch at once takes it in parts of one event time then.
A step with several inputs cannot keep it: event time behind it is that of the slower input, and how the rows of inputs
interleave differs from run to run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from barrier_runtime.data.event_time import Detail
from barrier_runtime.graph.logical import Node, StepNode

# Kinds of steps that take a batch in parts of one event time, and for steps behind that follow event time how closely.
_DIVIDES_FOR: dict[str, Detail] = {
    **dict.fromkeys(("map_batches", "process_groups", "lookup"), "late"),
    **dict.fromkeys(("join", "window_join", "asof_join", "table_join"), "rows"),
}
_CLOSENESS: dict[Detail, int] = {"none": 0, "late": 1, "rows": 2, "every": 3}


@dataclass(frozen=True)
class StepBehind:
    """How closely the steps behind a node follow its event time, and the first step that does so most closely."""

    detail: Detail = "none"
    step: str = ""

    def is_as_close_as(self, detail: Detail) -> bool:
        return _CLOSENESS[self.detail] >= _CLOSENESS[detail]


def followers_of(nodes: Sequence[Node]) -> list[StepBehind]:
    """By number of the node. A step that makes watermarks of its own hides its input's event time."""
    found = [StepBehind()] * len(nodes)
    for number in range(len(nodes) - 1, -1, -1):  # readers come behind what they read
        node = nodes[number]
        if not isinstance(node, StepNode) or node.makes_watermarks:
            continue
        closest = StepBehind(node.detail, node.name or node.kind)
        if not closest.is_as_close_as(found[number].detail):
            closest = found[number]
        for input in node.inputs:
            if not found[input.node].is_as_close_as(closest.detail):
                found[input.node] = closest
    return found


def divides(node: StepNode, behind: StepBehind) -> bool | None:
    """Whether `node` takes a batch in parts of one event time; None: it is not of a kind that could."""
    divides_for = _DIVIDES_FOR.get(node.kind)
    if divides_for is None or node.whole_batches:
        return None
    return behind.is_as_close_as(divides_for)


def interleaved(nodes: Sequence[Node], number: int) -> list[tuple[str, str]]:
    """Steps above node `number` (itself included) that merge inputs where event time is followed row by row, by that
    step or one behind it on the way to `number`: name, and why a replay may make other rows."""
    found: list[tuple[str, str]] = []
    todo, seen = [(number, "")], set[tuple[int, bool]]()
    while todo:
        at, follower = todo.pop()
        node = nodes[at]
        if not isinstance(node, StepNode) or (at, bool(follower)) in seen:
            continue
        seen.add((at, bool(follower)))
        if node.detail == "every":
            follower = node.name or node.kind
        if follower and len(node.inputs) > 1:
            found.append((node.name or node.kind, _why(follower, node)))
        todo += [(input.node, follower) for input in node.inputs]
    return found


def said_of(node: StepNode, behind: StepBehind) -> str:
    """What a plan says of how `node` keeps event time; empty if each row simply has that of the row it is made of."""
    if divides(node, behind):
        said = f", rows of one event time at a time: {behind.step!r} follows event time row by row"
    else:
        said = ""
    step = (node.name or node.kind) if node.detail == "every" else behind.step if behind.detail == "every" else ""
    if step and len(node.inputs) > 1:
        said += f"; {_why(step, node)}, so another run may give other rows"
    return said


def _why(follower: str, node: StepNode) -> str:
    steps = "it" if follower == (node.name or node.kind) else f"step {follower!r} behind it"
    return (
        f"the rows of {len(node.inputs)} inputs interleave in an order that nobody keeps, and {steps} follows event "
        "time row by row"
    )
