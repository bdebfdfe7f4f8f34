"""Checks of arguments that several steps have, and their words in a plan."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from barrier_runtime.api.handlers import refuse_coroutines
from barrier_runtime.connectors.source import Source, SourceDescription
from barrier_runtime.graph.event_time import interleaved
from barrier_runtime.graph.logical import Plan
from barrier_runtime.operators.aggregation.own import AnyAggregate, OwnAggregate
from barrier_runtime.operators.outputs.failures import OnError
from barrier_runtime.operators.retry import Retry, check_pauses
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.operators.state.handle import KeyedState


def why_by_wall_clock(function: Any, states: "Mapping[str, KeyedState]") -> str:
    """Why a replay may make other rows."""
    if callable(getattr(function, "on_wall_timer", None)):
        return f"{function_name(function)[:-2]} has timers by the wall clock"
    for name, state in states.items():
        if state.ttl is not None and state.ttl.clock != "event":
            return f"state {name!r} has a TTL by the wall clock"
    return ""


def retried(
    function: Callable[[Any], Any], on_error: OnError | Retry, all_rows: bool, where: str, what: str = "row"
) -> tuple[Callable[[Any], Any], OnError]:
    """The function of a row (or `what` it is of) that the operator calls, and what becomes of what it raises."""

    from barrier_runtime.operators.functions.retried_calls import RetriedCall

    if not isinstance(on_error, Retry):
        return function, on_error
    check_pauses(on_error, where)
    return RetriedCall(function, on_error, all_rows, what=what), "fail"


def with_errors(function: str, on_error: OnError | Retry, what: str = "rows") -> str:
    return f"{function}, skips {what} for which it raises" if on_error == "skip" else function


def check_deterministic(plan: Plan, node: int, where: str) -> None:
    """Raises `InvalidJob` for a step up to `node` of which a replay may make other rows, before a sink that relies on
    equal rows."""
    for step, why in plan.by_wall_clock(node):
        raise InvalidJob(
            f"{where} is declared deterministic=True, but in step {step!r} before it {why}, so a replay may make other "
            "rows: take event time (clock='event', ctx.timers; rules by broadcast('barrier')), or a sink that is "
            "exactly once by itself"
        )
    for step, why in interleaved(plan.nodes, node):
        raise InvalidJob(
            f"{where} is declared deterministic=True, but in step {step!r} before it {why}, so a replay may make other "
            "rows: use windows in place of what follows event time there, or a sink that is exactly once by itself"
        )


def check_callable(function: Any, where: str) -> None:
    if not callable(function):
        raise InvalidJob(f"{where}: {function!r} cannot be called: pass a function of a row")
    refuse_coroutines(function, where)


def check_generator(generator: Any, bound_ms: int, where: str) -> None:
    """What makes a `WatermarkGenerator` in each subtask."""

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
    """What `Dataflow.source` is given, under its name in the flow."""
    made = source.named(name) if isinstance(source, SourceDescription) and not isinstance(source, type) else source
    parts = ("schema", "exactly_once", "splits", "reader")  # of a wrapper they may be another source's
    if isinstance(made, type) or not all(hasattr(made, part) for part in parts):
        raise InvalidJob(
            f"source {name!r}: source={source!r} is not a source: pass one, such as ParquetSource(url), or one of your "
            "own, which has schema, exactly_once, splits() and reader()"
        )
    return made
