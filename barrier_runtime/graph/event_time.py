"""Steps that follow event time row by row, and the duties of the steps before.

A step follows event time with one of these details (`Detail`):

- "every": each advance of event time. Steps with timers, a TTL or early results in event time, and
  `deduplicate(within=…)`.
- "late": rows of the source that may be late. Windows and joins by the source's time.
- "rows": all rows, since a step may have changed their time. Other windows and joins.

Steps before such a step keep the event time reached at each row (`Batch.reached`). Design:
docs/design/event-time-in-a-batch.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from barrier_runtime.data.event_time import Detail
from barrier_runtime.graph.logical import Node, StepNode

_DIVIDES_FOR: dict[str, Detail] = {
    **dict.fromkeys(("map_batches", "process_groups", "lookup"), "late"),
    **dict.fromkeys(("join", "window_join", "asof_join", "table_join"), "rows"),
}
_CLOSENESS: dict[Detail, int] = {"none": 0, "late": 1, "rows": 2, "every": 3}


@dataclass(frozen=True)
class StepBehind:
    """Finest detail that later steps need, and the first step that needs this detail."""

    detail: Detail = "none"
    step: str = ""

    def is_as_close_as(self, detail: Detail) -> bool:
        return _CLOSENESS[self.detail] >= _CLOSENESS[detail]


def followers_of(nodes: Sequence[Node]) -> list[StepBehind]:
    """Returns the `StepBehind` of each node, by number.
    A step that makes watermarks hides the event time of its input.
    """
    found = [StepBehind()] * len(nodes)
    for number in range(len(nodes) - 1, -1, -1):  # readers have higher numbers than their inputs
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
    """True if `node` takes a batch in parts of one event time; None: its kind never does."""
    divides_for = _DIVIDES_FOR.get(node.kind)
    if divides_for is None or node.whole_batches:
        return None
    return behind.is_as_close_as(divides_for)


def interleaved(nodes: Sequence[Node], number: int) -> list[tuple[str, str]]:
    """Step `number` and earlier steps, if they merge inputs and follow event time by row, or precede such a step.

    Returns names, and why a replay may produce other rows."""
    found: list[tuple[str, str]] = []
    todo, seen = [(number, "")], set[tuple[int, bool]]()
    while todo:
        at, follower = todo.pop()
        node = nodes[at]
        if not isinstance(node, StepNode) or node.stable or (at, bool(follower)) in seen:
            continue
        seen.add((at, bool(follower)))
        if node.detail == "every":
            follower = node.name or node.kind
        if follower and len(node.inputs) > 1:
            found.append((node.name or node.kind, _why(follower, node)))
        todo += [(input.node, follower) for input in node.inputs]
    return found


def said_of(node: StepNode, behind: StepBehind) -> str:
    if divides(node, behind):
        said = f", rows of one event time at a time: {behind.step!r} follows event time row by row"
    else:
        said = ""
    step = (node.name or node.kind) if node.detail == "every" else behind.step if behind.detail == "every" else ""
    if step and len(node.inputs) > 1:
        said += f"; {_why(step, node)}, so another run may give other rows: stable() after it repeats them"
    return said


def _why(follower: str, node: StepNode) -> str:
    steps = "it" if follower == (node.name or node.kind) else f"step {follower!r} behind it"
    return (
        f"the rows of {len(node.inputs)} inputs interleave in an order that nobody keeps, and {steps} follows event "
        "time row by row"
    )
