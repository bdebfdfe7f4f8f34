"""Argument checks shared by several steps, and texts about arguments for `explain`."""

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from barrier_runtime.connectors.source import Ending, Source, SourceDescription
from barrier_runtime.graph.event_time import interleaved
from barrier_runtime.graph.logical import Plan, SourceNode
from barrier_runtime.operators.aggregation.own import AnyAggregate, OwnAggregate
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import Retry, check_pauses
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.operators.state.handle import KeyedState

TIMERS = {"on_timer": ("key", "timestamp_ms", "ctx"), "on_wall_timer": ("key", "due_ms", "ctx")}
_STORED = "give the sink after_decision=True instead, or call stable() directly before the sink"


def refuse_coroutines(function: Any, where: str, methods: Iterable[str] = ()) -> None:
    """Raises `InvalidJob` if a function, or one of its `methods`, is an `async def`."""
    for called in (function, *(getattr(function, name, None) for name in ("__call__", *methods))):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise InvalidJob(
                f"{where}: {function_name(called)} is an async def, and nobody awaits it here: write a plain function; "
                'what asks another system belongs in lookup("name", function, key=…), which runs coroutines'
            )
    for name in {"open", "close"}.intersection(methods):
        if inspect.isgeneratorfunction(getattr(function, name, None)):
            raise InvalidJob(
                f"{where}: {function_name(getattr(function, name))} yields, but rows go out only with a row or a "
                "timer: yield them there; when all input has ended every timer fires"
            )


def check_handlers(function: Any, handlers: Mapping[str, tuple[str, ...]], where: str) -> None:
    """Raises `InvalidJob` for handlers that are missing, never called, or take other parameters.

    `handlers`: names of the required methods to their parameters."""
    said = function_name(function)[:-2]
    unknown = [
        name
        for name in dir(function)
        if name.startswith("on_") and name not in handlers and name not in TIMERS and callable(getattr(function, name))
    ]
    for name, takes in handlers.items():
        if not callable(getattr(function, name, None)):
            meant = difflib.get_close_matches(name, unknown, 1)
            hint = f"call {meant[0]}() so" if meant else "add it"
            raise InvalidJob(f"{where}: {said} has no method {name}(self, {', '.join(takes)}): {hint}")
    for name in unknown:
        meant = difflib.get_close_matches(name, [*handlers, *TIMERS], 1)
        hint = f"is {meant[0]}() meant? Else " if meant else ""
        raise InvalidJob(
            f"{where}: nothing calls {said}.{name}(): its inputs are {', '.join(handlers)}: {hint}let its name not "
            "begin with 'on_', or give connect() an input of that name"
        )
    refuse_coroutines(function, where, (*handlers, *TIMERS, "open", "close"))
    for name, takes in {**handlers, **TIMERS}.items():
        if callable(getattr(function, name, None)) and not takes_arguments(function, name, len(takes)):
            raise InvalidJob(
                f"{where}: {said}.{name}() takes {_shown(function, name)}: let it take (self, {', '.join(takes)})"
            )


def refuse_misspelt_timers(function: Any, where: str) -> None:
    for name in dir(function):
        meant = difflib.get_close_matches(name, TIMERS, 1, 0.8) if name.startswith("on_") else []
        if meant and not hasattr(function, meant[0]) and callable(getattr(function, name)):
            raise InvalidJob(
                f"{where}: nothing calls {function_name(function)[:-2]}.{name}(): is {meant[0]}() meant? Else let its "
                "name not begin with 'on_'"
            )


def check_row_function(function: Any, where: str) -> None:
    from barrier_runtime.operators.functions.declared import declared_states

    said = function_name(function)
    if not callable(getattr(function, "process", function)) or (
        isinstance(function, type) and not callable(getattr(function, "process", None))
    ):
        raise InvalidJob(
            f"{where}: {function!r} is neither a function of (row, ctx) nor has it process(self, row, ctx)"
        )
    refuse_coroutines(function, where, ("process", "open", "close"))
    states = declared_states(function)
    if states:
        raise InvalidJob(
            f"{where}: {said[:-2]} keeps state ({', '.join(states)}), and state belongs to a key: call .key_by(…) "
            "before it, and let process take (self, key, row, ctx)"
        )
    for name in TIMERS:
        if callable(getattr(function, name, None)):
            raise InvalidJob(
                f"{where}: {said[:-2]} has {name}(), and timers belong to a key: call .key_by(…) before it"
            )
    method = "process" if hasattr(function, "process") else None
    if not takes_arguments(function, method, 2):
        raise InvalidJob(
            f"{where}: {said} takes {_shown(function, method)}: a stream without key "
            "gives (row, ctx); for (key, row, ctx) call .key_by(…) before it"
        )


def require_arguments(function: Any, takes: tuple[str, ...], where: str) -> None:
    if not takes_arguments(function, None, len(takes)):
        raise InvalidJob(
            f"{where}: {function_name(function)} takes {_shown(function, None)}: let it take ({', '.join(takes)})"
        )


def takes_arguments(function: Any, method: str | None, count: int) -> bool:
    called = function if method is None else getattr(function, method)
    unbound = False
    if method is not None and isinstance(function, type):
        unbound = inspect.isfunction(inspect.getattr_static(function, method))
    try:
        inspect.signature(called).bind(*range(count + unbound))
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _shown(function: Any, method: str | None) -> str:
    called = function if method is None else getattr(function, method)
    return f"({', '.join(inspect.signature(called).parameters)})"


def why_by_wall_clock(function: Any, states: "Mapping[str, KeyedState]") -> str:
    if callable(getattr(function, "on_wall_timer", None)):
        return f"{function_name(function)[:-2]} has timers by the wall clock"
    for name, state in states.items():
        if state.ttl is not None and state.ttl.clock != "event":
            return f"state {name!r} has a TTL by the wall clock"
    return ""


def retried(
    function: Callable[[Any], Any], on_error: OnError | Retry, all_rows: bool, where: str, what: str = "row"
) -> tuple[Callable[[Any], Any], OnError]:
    """`all_rows`: see `RetriedCall`."""

    from barrier_runtime.operators.retry import RetriedCall

    if not isinstance(on_error, Retry):
        return function, on_error
    check_pauses(on_error, where)
    return RetriedCall(function, on_error, all_rows, what=what), "fail"


def with_errors(function: str, on_error: OnError | Retry, what: str = "rows") -> str:
    return f"{function}, skips {what} for which it raises" if on_error == "skip" else function


def check_deterministic(plan: Plan, node: int, where: str) -> None:
    """Raises `InvalidJob` if a replay of the steps up to `node` may produce other rows."""
    for step, why in plan.by_wall_clock(node):
        raise InvalidJob(
            f"{where} is declared deterministic=True, but in step {step!r} before it {why}, so a replay may make other "
            f"rows: {_STORED}, or take event time (clock='event', ctx.timers; rules by broadcast('barrier')), or a "
            "sink that is exactly once by itself"
        )
    for step, why in interleaved(plan.nodes, node):
        raise InvalidJob(
            f"{where} is declared deterministic=True, but in step {step!r} before it {why}, so a replay may make other "
            f"rows: {_STORED}, or use windows in place of what follows event time there, or a sink that is exactly "
            "once by itself"
        )


def check_order(plan: Plan, earlier: frozenset[int], later: frozenset[int], where: str) -> None:
    """Raises `InvalidJob` if `earlier` sources never end, or wait for `later` sources."""
    for number in earlier:
        node = plan.nodes[number]
        assert isinstance(node, SourceNode)
        if number in later:
            raise InvalidJob(f"{where}: source {node.name!r} is above both streams: read the place by two sources")
        for other in sorted(later & plan.read_before(number)):
            raise InvalidJob(
                f"{where}: source {node.name!r} is itself read after source {plan.nodes[other].name!r}, so both would "
                "wait for one another: put the sources in one order"
            )
        if not isinstance(node.source, Ending):
            warnings.warn(
                f"{where}: check that source {node.name!r} ({node.source!r}) ends: the later stream begins afterwards",
                stacklevel=4,
            )
        elif node.source.endless:
            raise InvalidJob(
                f"{where}: source {node.name!r} ({node.source!r}) never ends, so the later stream would never begin: "
                "give the history an end (until=, until_idle= or rows=; files and tables without watch=)"
            )


def check_callable(function: Any, where: str) -> None:
    if not callable(function):
        raise InvalidJob(f"{where}: {function!r} cannot be called: pass a function of a row")
    refuse_coroutines(function, where)


def check_generator(generator: Any, bound_ms: int, where: str) -> None:
    from barrier_runtime.operators.watermark_generator import WatermarkGenerator

    if bound_ms:
        raise InvalidJob(
            f"{where}: max_out_of_orderness beside generator=: the generator says how far event time has come, so "
            "leave the other out"
        )
    if isinstance(generator, type) and not issubclass(generator, WatermarkGenerator):
        raise InvalidJob(f"{where}: generator={generator.__name__}: derive it from WatermarkGenerator")
    if isinstance(generator, WatermarkGenerator) or not callable(generator):
        raise InvalidJob(
            f"{where}: generator={generator!r}: pass the class, or a function that makes one, because each subtask has "
            "a generator of its own"
        )


def check_aggregates(aggregates: Mapping[str, Any], where: str) -> None:
    if not aggregates:
        raise InvalidJob(f"{where}: no aggregates: give at least one, such as n=count()")
    for name, aggregate in aggregates.items():
        if name == "on_error" and (isinstance(aggregate, Retry) or aggregate in ("fail", "skip", "side")):
            raise InvalidJob(
                f"{where}: on_error={aggregate!r} is not for aggregates: a row that one of them leaves out would count "
                "in the others, and what add() had changed before it raised would stay. Let the aggregate pass over "
                "what it cannot take (return the state), or sort such rows out before, as in map(…, on_error='side')"
            )
        if not isinstance(aggregate, AnyAggregate):
            raise InvalidJob(
                f"{where}: {name}={aggregate!r} is not an aggregate: use one of barrier_runtime's, as count() or "
                f'sum_("amount"), or a RowAggregate or ColumnAggregate of your own (docs/aggregates.md has all)'
            )
        if isinstance(aggregate, OwnAggregate):
            refuse_coroutines(type(aggregate), f"{where}, {name}", ("zero", "add", "merge", "result"))


def aggregates_said(aggregates: Mapping[str, AnyAggregate]) -> str:
    return ", ".join(f"{name}={aggregate}" for name, aggregate in aggregates.items())


def source_of(name: str, source: Any) -> Source:
    made = source.named(name) if isinstance(source, SourceDescription) and not isinstance(source, type) else source
    parts = ("schema", "exactly_once", "splits", "reader")  # a wrapper may delegate these to another source
    if isinstance(made, type) or not all(hasattr(made, part) for part in parts):
        raise InvalidJob(
            f"source {name!r}: source={source!r} is not a source: pass one, such as ParquetSource(url), or one of your "
            "own, which has schema, exactly_once, splits() and reader()"
        )
    return made
