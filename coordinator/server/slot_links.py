"""Connections to slots, and clients' questions to a slot.

Nobody repeats a question: without an answer the client gets an error and may ask again.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from barrier_runtime.coordinator.job.events import Link
from barrier_runtime.coordinator.job.slot import RegisteredSlot
from barrier_runtime.coordinator.job.slots import SlotTable
from barrier_runtime.coordinator.wire.messages import AskSlot, SlotAnswer, Subject, ToSlot
from barrier_runtime.state.errors import InvalidJob, Unavailable

ANSWER_S = 3.5  # less than the timeout of a client of several daemons
MOST_QUESTIONS = 32


class SlotLink(Protocol):
    """Neither method blocks; errors appear as `slot_disconnected`."""

    def send(self, message: ToSlot) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Open:
    link: Link
    answer: "asyncio.Future[SlotAnswer]"


class SlotQuestions:
    def __init__(self, job: str, slots: SlotTable, links: Mapping[Link, SlotLink]) -> None:
        self._job = job
        self._slots = slots
        self._links = links
        self._open: dict[int, _Open] = {}
        self._asked = 0

    async def ask(self, index: int, subject: Subject, wait_s: float = ANSWER_S) -> tuple[str, ...]:
        return await self._ask(index, AskSlot(0, subject), wait_s)

    async def rows(self, index: int, step: str, count: int) -> tuple[str, ...]:
        """Returns up to `count` rows as JSON that the step sends on within two seconds."""
        return await self._ask(index, AskSlot(0, "rows", step, count), ANSWER_S)

    async def _ask(self, index: int, question: AskSlot, wait_s: float) -> tuple[str, ...]:
        """Raises `InvalidJob` if the slot is unknown or cannot answer, `Unavailable` without an answer."""
        slot, link = self._reached(index)
        if len(self._open) >= MOST_QUESTIONS:
            raise Unavailable(f"{MOST_QUESTIONS} questions to slots of job {self._job} are open: ask again in a moment")
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[SlotAnswer] = asyncio.get_running_loop().create_future()
        self._open[number] = _Open(link, answer)
        try:
            self._links[link].send(msgspec.structs.replace(question, number=number))
            found = await asyncio.wait_for(answer, wait_s)
        except asyncio.TimeoutError:
            raise Unavailable(_silent(slot, wait_s)) from None
        finally:
            del self._open[number]
        if found.refusal:
            raise Unavailable(f"slot {index}: {found.refusal}")
        return found.lines

    def _reached(self, index: int) -> tuple[RegisteredSlot, Link]:
        slot = self._slots.at(index)
        if slot is None and index not in self._slots.missing:
            raise InvalidJob(
                f"job {self._job} has no slot {index}: `barrier-runtime status {self._job}` lists the slots"
            )
        if slot is None or slot.link is None or slot.link not in self._links:
            raise Unavailable(
                f"slot {index} of job {self._job} is not connected now: `barrier-runtime why {self._job}` names the "
                "reason"
            )
        if not slot.register.answers:
            raise InvalidJob(
                f"slot {index} runs an earlier build, which answers no questions: processes that start after a rescale "
                "or in a new run of the program, answer"
            )
        return slot, slot.link

    def answered(self, link: Link, message: SlotAnswer) -> None:
        asked = self._open.get(message.number)
        if asked is not None and asked.link == link and not asked.answer.done():
            asked.answer.set_result(message)

    def lost(self, link: Link) -> None:
        for asked in self._open.values():
            if asked.link == link and not asked.answer.done():
                asked.answer.set_exception(Unavailable("the connection to the slot broke: ask again in a moment"))


def _silent(slot: RegisteredSlot, wait_s: float) -> str:
    pid, host = slot.register.pid, slot.register.host
    return (
        f"slot {slot.index} has not answered for {wait_s:g} s: a step holds the event loop, or the process is stopped. "
        f"`py-spy dump --pid {pid}` on host {host} shows the stacks of a process that does not answer"
    )
