"""Answers of a slot to clients: log records, stacks, preview rows.

Made on a worker thread, bounded, with secrets masked. Errors go to the client and never fail the job.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence

from barrier_runtime.coordinator.wire.messages import AskSlot, SlotAnswer
from barrier_runtime.runtime.error_reports import encodable
from barrier_runtime.runtime.host.own_log import OWN_LOG
from barrier_runtime.runtime.host.preview import LASTS_S, Preview, place_of
from barrier_runtime.runtime.host.row_text import rows_as_text
from barrier_runtime.runtime.host.stacks import sampled_stacks
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.masked_text import MOST_MASKED, masked_within

MOST_BYTES = 256 * 1024
_MOST_OF_A_REFUSAL = 1_000  # characters


class Answers:
    def __init__(self, resources: SlotResources, send: Callable[[SlotAnswer], None]) -> None:
        self._res = resources
        self._send = send
        self._loop_thread = threading.get_ident()
        self._previewed = False
        self._under_way: set[asyncio.Task[None]] = set()

    def to(self, order: AskSlot, subtasks: Sequence[Subtask]) -> None:
        task = self._res.loop.create_task(self._answer(order, subtasks))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, order: AskSlot, subtasks: Sequence[Subtask]) -> None:
        try:
            if order.subject == "rows":
                lines = await self._rows(order, subtasks)
            else:
                lines = await self._res.workers.run(self._log if order.subject == "log" else self._stacks)
            answer = SlotAnswer(order.number, lines)
        except InvalidJob as error:
            answer = SlotAnswer(order.number, refusal=refusal_of(str(error)))
        except Exception as error:  # of a broken module's source, or of an interpreter that ends
            answer = SlotAnswer(order.number, refusal=refusal_of(f"{type(error).__name__}: {error}"))
        self._send(answer)

    async def _rows(self, order: AskSlot, subtasks: Sequence[Subtask]) -> tuple[str, ...]:
        place = place_of(order.step, subtasks)
        if place is None:
            raise InvalidJob(f"no step {order.step[:100]!r} runs in this slot now: name a step of the graph")
        if self._previewed:
            raise InvalidJob("another preview is under way in this slot: ask again in a moment")
        self._previewed = True
        preview = Preview(*place, order.count, self._res.loop.create_future())
        try:
            await asyncio.wait([preview.full], timeout=LASTS_S)
        finally:
            preview.end()
            self._previewed = False
        lines: tuple[str, ...] = await self._res.workers.run(
            lambda: first_of(rows_as_text(preview.batches, preview.count))
        )
        return lines

    def _log(self) -> tuple[str, ...]:
        newest_first = bounded(reversed(OWN_LOG.lines()))
        return tuple(reversed(newest_first))

    def _stacks(self) -> tuple[str, ...]:
        return bounded(sampled_stacks(self._loop_thread))


def bounded(texts: Iterable[str], most_bytes: int = MOST_BYTES) -> tuple[str, ...]:
    return first_of((masked_within(encodable(text), MOST_MASKED) for text in texts), most_bytes)


def first_of(texts: Iterable[str], most_bytes: int = MOST_BYTES) -> tuple[str, ...]:
    """First texts within `most_bytes`; expects masked secrets."""
    found, left = [], most_bytes
    for text in texts:
        left -= len(text.encode())
        if left < 0:
            break
        found.append(text)
    return tuple(found)


def refusal_of(text: str) -> str:
    return masked_within(encodable(text), _MOST_OF_A_REFUSAL)
