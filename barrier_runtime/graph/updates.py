"""Finds columns emitted again with each update of a key, to warn if a step adds them up.

Columns are followed through the flow by name; `map` and similar steps may have renamed them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from barrier_runtime.coordinator.wire.messages import STABLE_KIND
from barrier_runtime.graph.logical import Input, Node, Plan, SourceNode, StepNode

RUNNING, EARLY, LATE = "running aggregate", "window", "window with an allowed lateness"
_FUNCTIONS = ("map", "flat_map", "map_batches")  # only the names of their columns are known
_MARKS = frozenset({"update", "early", "retracted"})  # columns by which a filter keeps the last results of windows
_PASSING_ON = ("deduplicate", "union", "lookup", STABLE_KIND)  # steps with state that emit their input rows
_WHEN = {
    RUNNING: "whose result goes out again with each row",
    EARLY: "whose results go out before the window is over, too",
    LATE: "whose results go out again for late rows",
}
_ONE_ROW = ("max", "last", "arg_max")  # each picks one of all updates: the right one, if values grow


@dataclass(frozen=True)
class Updated:
    """Updates by `step`: the newest value per `keys` counts."""

    step: str
    kind: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Updates:
    """Columns of a stream that are updates. `others`: origin of columns with unknown names."""

    columns: Mapping[str, Updated] = field(default_factory=dict)
    others: Updated | None = None
    plain: frozenset[str] = frozenset()  # columns with known names that are not updates

    def of(self, column: str) -> Updated | None:
        return self.columns.get(column) or (None if column in self.plain else self.others)

    @property
    def any(self) -> Updated | None:
        return next(iter(self.columns.values()), self.others)


NONE = Updates()


@dataclass(frozen=True)
class UpdatesOfStep:
    """`gives`: columns made by the step that are updates."""

    counts: Callable[[Updates], str]
    gives: Collection[str] = ()


def updates_of(plan: Plan, number: int) -> Updates:
    found: list[Updates] = []
    for node in plan.nodes[: number + 1]:
        found.append(_behind(node, [NONE if each.tag else found[each.node] for each in _inputs(node)], plan))
    return found[number]


def counted_updates(before: Updates, aggregates: Mapping[str, object]) -> str:
    for name, aggregate in aggregates.items():
        columns = getattr(aggregate, "columns", None)
        if getattr(aggregate, "kind", "") in _ONE_ROW or columns is None:
            continue
        updated = before.any if not columns else next(filter(None, map(before.of, columns)), None)
        if updated is not None:
            return _counted(f"{name}={aggregate}", updated)
    return ""


def first_update_passes(before: Updates, columns: Collection[str]) -> str:
    """Warns if deduplication by `columns` would keep only the first update of each key."""
    updated = before.any
    if updated is None or not set(columns) <= set(updated.keys):
        return ""
    return (
        f"it passes on the first update of each key of {updated.kind} {updated.step!r}, and drops the later ones, "
        f"which are its results. {_instead(updated)}"
    )


def every_update_joins(before: Updates, keys: Collection[str]) -> str:
    """Warns if each update of a step would be joined with the other side's rows."""
    updated = before.any
    if updated is None or not set(keys) <= set(updated.keys):
        return ""
    return (
        f"every update of {updated.kind} {updated.step!r} is joined as a row of its own, where SQL would join the last "
        f"one of each key. Use a table join, which takes the newest row of a key; or: {_instead(updated)}"
    )


def ranked_updates(before: Updates, columns: Iterable[str]) -> str:
    """Warns if rows would be ranked by updates."""
    updated = next(filter(None, map(before.of, columns)), None)
    return "" if updated is None else _counted("the ranking", updated)


def _counted(what: str, updated: Updated) -> str:
    return (
        f"{what} counts every update of {updated.kind} {updated.step!r}, {_WHEN[updated.kind]}, where SQL would take "
        f"the last result of each key. {_instead(updated)}"
    )


def _instead(updated: Updated) -> str:
    if updated.kind == EARLY:
        return "Leave early= out there, or keep the last results alone: filter('not early')"
    if updated.kind == LATE:
        return "Leave allowed_lateness= out there, or keep the first results alone: filter('update = 0')"
    return (
        "Make the first step a window (key_by(…).window(…).aggregate(…)), which gives one row per key and window; if "
        "every update is meant to count (emit on change), leave its results out with select(), or filter this warning"
    )


def _inputs(node: Node) -> tuple[Input, ...]:
    return node.inputs if isinstance(node, StepNode) else ()


def _behind(node: Node, before: list[Updates], plan: Plan) -> Updates:
    if not isinstance(node, StepNode):
        return NONE
    found = _merged(before)
    own = {name: Updated(node.name or node.kind, _kind_of(node), node.inputs[0].keys) for name in node.updates}
    if node.kind == RUNNING:
        return Updates({**found.columns, **own}, found.others, found.plain)
    if own or found.any is None or node.is_sink:
        return Updates(own)
    if node.kind == "filter" and (node.reads is None or node.reads & _MARKS):
        return Updates({name: each for name, each in found.columns.items() if each.kind == RUNNING}, found.others)
    if node.made_of is not None:
        return _selected(node.made_of, found)
    if node.kind in _FUNCTIONS:
        return _of_function(node, found, plan)
    if node.stateful and node.kind not in _PASSING_ON and "join" not in node.kind:
        return NONE
    if node.schema is None:
        return found
    known = frozenset(name for each in node.inputs for name in _names(plan.nodes[each.node]))
    names = {name: each for name in node.schema.names if (each := _of_join(name, found, known)) is not None}
    return Updates(names, found.others, found.plain)


def _kind_of(node: StepNode) -> str:
    late = node.kind == EARLY and node.schema is not None and "early" not in node.schema.names
    return LATE if late else node.kind


def _merged(before: list[Updates]) -> Updates:
    columns: dict[str, Updated] = {}
    for each in before:
        columns.update(each.columns)
    others = next((each.others for each in before if each.others is not None), None)
    return Updates(columns, others, frozenset().union(*(each.plain for each in before)))


def _selected(made_of: Mapping[str, frozenset[str] | None], found: Updates) -> Updates:
    columns: dict[str, Updated] = {}
    for name, read in made_of.items():
        updated = found.any if read is None else next(filter(None, map(found.of, sorted(read))), None)
        if updated is not None:
            columns[name] = updated
    return Updates(columns)


def _of_function(node: StepNode, found: Updates, plan: Plan) -> Updates:
    plain = frozenset(name for name in _names(plan.nodes[node.inputs[0].node]) if found.of(name) is None)
    if node.schema is None:
        return Updates(found.columns, found.any, plain)
    kept = {name: each for name in node.schema.names if (each := found.columns.get(name)) is not None}
    renamed = {} if kept or found.any is None else {name: found.any for name in node.schema.names if name not in plain}
    return Updates({**kept, **renamed})


def _of_join(name: str, found: Updates, known: frozenset[str]) -> Updated | None:
    if name in known:
        return found.of(name)
    return next((each for column, each in found.columns.items() if name.startswith(column)), None)


def _names(node: Node) -> list[str]:
    schema = node.source.schema if isinstance(node, SourceNode) else node.schema
    return [] if schema is None else list(schema.names)
