"""Order of splits that a subtask reads one after another."""

import heapq
import logging
from collections.abc import Iterator
from typing import Any

from barrier_runtime.connectors.in_turn import InTurn
from barrier_runtime.connectors.source import Split
from barrier_runtime.coordinator.metric_table import FILES_OUT_OF_ORDER
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.runtime.sources.progress import OpenSplit

log = logging.getLogger(__name__)


class Turns:
    """Splits that wait for their turn: splits that a checkpoint has in part first, then by the source's order.

    A split that appears after the turn of a later split is next. All are counted, the first is logged.
    """

    def __init__(self, source: InTurn, context: OperatorContext, where: str) -> None:
        self._source = source
        self._context = context
        self._where = where
        self._waiting: list[tuple[bool, tuple[Any, ...], OpenSplit]] = []
        self._reading: OpenSplit | None = None
        self._latest: OpenSplit | None = None
        self._latest_turn: tuple[Any, ...] = ()
        self._logged = False

    def __iter__(self) -> Iterator[OpenSplit]:
        return (split for *_, split in self._waiting)

    def add(self, split: Split, opened: OpenSplit) -> None:
        heapq.heappush(self._waiting, (not opened.asked, self._source.turn(split), opened))

    def after(self, ended: OpenSplit | None) -> OpenSplit | None:
        """Returns the next split if `ended` was being read (None: if no split is being read)."""
        if self._reading is not ended:
            return None
        self._reading = None
        if self._waiting:
            _, turn, self._reading = heapq.heappop(self._waiting)
            if turn < self._latest_turn:
                self._is_late(self._reading)
            else:
                self._latest, self._latest_turn = self._reading, turn
        return self._reading

    def _is_late(self, split: OpenSplit) -> None:
        self._context.metrics.count(FILES_OUT_OF_ORDER)
        if not self._logged:
            self._logged = True
            log.warning(
                "%s: split %r is read after split %r, whose place by file_order= is later, so older rows of a key may "
                "replace newer rows: let writers make files visible in that order",
                self._where,
                split.id,
                "" if self._latest is None else self._latest.id,
            )
