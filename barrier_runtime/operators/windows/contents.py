"""Content of windows that keep aggregates, and the choice of their entries."""

from collections.abc import Mapping
from dataclasses import dataclass

from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.windows.aggregate import Windows
from barrier_runtime.operators.windows.assigners import WindowAssigner, lateness_definition
from barrier_runtime.operators.windows.entries import WindowEntries
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.sessions.aggregate import Sessions
from barrier_runtime.operators.windows.sessions.updates import ToldSessions
from barrier_runtime.operators.windows.sliding import sliding_entries
from barrier_runtime.operators.windows.triggers import WindowTrigger


@dataclass(frozen=True)
class Aggregates:
    aggregates: Mapping[str, AnyAggregate]
    in_slices: bool = True  # where windows share slices and the aggregates permit
    holds_rows = False

    def definition(self, window: WindowAssigner, lateness_ms: int = 0, trigger: WindowTrigger | None = None) -> str:
        told = "" if trigger is None else f", {trigger.definition}"
        return lateness_definition(window, lateness_ms) + told

    def entries(self, operator: WindowOperator) -> WindowEntries:
        window = operator.window
        once = not operator.lateness_ms and operator.trigger is None
        if window.merges:
            return Sessions(operator) if once else ToldSessions(operator)
        if window.shares_slices and self.in_slices and once and not operator.clock.is_wall_clock:
            return sliding_entries(operator)
        return Windows(operator)
