"""Questions of clients to a slot over the REST interface: slots that answer, and all those that do not."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.client.rest_token import Token, daemon_key
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.rest import ControlAddress, application
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.server.slot_links import MOST_QUESTIONS
from barrier_runtime.coordinator.wire.messages import AskSlot, Register, SlotAnswer, ToSlot
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from tests.waiting import eventually

SECRET = "7" * 64
GOOD = {"Authorization": f"Bearer {SECRET}"}
LOG = "/jobs/flights/slots/0/log"


class PlayedSlot:
    """A connection of slot `index`, which the test answers."""

    def __init__(self, runner: JobRunner, index: int, *, answers: bool = True, attempt: int = 0) -> None:
        self.runner = runner
        self.asked: list[AskSlot] = []
        uuid = f"process-{index}-{attempt}"
        register = Register(index, uuid, 4_711, "worker-1", attempt, "", 0, 0, "idle", answers=answers)
        runner.slot_connected(self, register)

    def send(self, message: ToSlot) -> None:
        if isinstance(message, AskSlot):
            self.asked.append(message)

    def close(self) -> None:
        """Does nothing: the test looks at messages."""

    def say(self, *lines: str, number: int | None = None, refusal: str = "") -> None:
        self.runner.slot_message(self, SlotAnswer(number or self.asked[-1].number, lines, refusal))


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[httpx.AsyncClient, JobRunner]]:
    directory = JobDirectory(MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h")
    app = application(directory, ControlAddress("127.0.0.1", 7), Token("test", SECRET.encode()), pid=42)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://coordinator") as http:
        runner = await directory.submit(spec())
        await eventually(lambda: runner.lead_position is not None)
        yield http, runner
    await directory.close()


async def test_a_question_reaches_its_slot_alone_and_the_answer_the_client() -> None:
    async with served() as (http, runner):
        slots = [PlayedSlot(runner, 0), PlayedSlot(runner, 1)]
        events = runner.facts.record.ignored.copy()
        asking = asyncio.create_task(http.get("/jobs/flights/slots/1/stacks", headers=GOOD))
        await eventually(lambda: slots[1].asked)
        assert (slots[0].asked, slots[1].asked[0].subject) == ([], "stacks")
        slots[0].say("of another slot", number=slots[1].asked[0].number)
        slots[1].say("of no question", number=99)
        slots[1].say("MainThread: 10 of 10 samples")
        slots[1].say("once more")
        assert (await asking).json() == {"slot": 1, "lines": ["MainThread: 10 of 10 samples"]}
        assert runner.facts.record.ignored == events, "no answer is an event of the job"


async def test_looks_at_log_and_stacks_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    """G6: log records may quote rows."""
    with caplog.at_level(logging.INFO, "coordinator.audit"):
        async with served() as (http, _):
            for path in (LOG, "/jobs/flights/slots/0/stacks", "/jobs/flights/trend"):
                await http.get(path, headers=GOOD)
    lines = [record.getMessage() for record in caplog.records if record.name == "coordinator.audit"]
    assert lines == [f"token test: GET {LOG}", "token test: GET /jobs/flights/slots/0/stacks"]


async def test_a_silent_slot_is_named_with_its_process() -> None:
    async with served() as (_, runner):
        PlayedSlot(runner, 0)
        with pytest.raises(Unavailable, match=r"slot 0 has not answered .* `py-spy dump --pid 4711` on host worker-1"):
            await runner.questions.ask(0, "log", wait_s=0.01)


async def test_a_connection_that_breaks_ends_its_questions() -> None:
    async with served() as (http, runner):
        slot = PlayedSlot(runner, 0)
        asking = asyncio.create_task(http.get(LOG, headers=GOOD))
        await eventually(lambda: slot.asked)
        runner.slot_disconnected(slot)
        answer = await asking
        assert (answer.status_code, answer.json()["error"]) == (
            503,
            "the connection to the slot broke: ask again in a moment",
        )
        again = await http.get(LOG, headers=GOOD)
        assert "slot 0 of job flights is not connected now: `barrier-runtime why flights`" in again.json()["error"]


async def test_a_process_that_another_replaces_ends_its_questions() -> None:
    async with served() as (http, runner):
        slot = PlayedSlot(runner, 0)
        asking = asyncio.create_task(http.get(LOG, headers=GOOD))
        await eventually(lambda: slot.asked)
        PlayedSlot(runner, 0, attempt=1)
        assert (await asking).json()["error"] == "the connection to the slot broke: ask again in a moment"


async def test_a_slot_of_an_earlier_build_is_never_asked() -> None:
    """Its decoder would refuse the message, and close the connection."""
    async with served() as (http, runner):
        slot = PlayedSlot(runner, 0, answers=False)
        answer = await http.get(LOG, headers=GOOD)
        assert (answer.status_code, "runs an earlier build" in answer.json()["error"]) == (400, True)
        assert slot.asked == []


async def test_a_refusal_of_the_slot_reaches_the_client() -> None:
    async with served() as (http, runner):
        slot = PlayedSlot(runner, 0)
        asking = asyncio.create_task(http.get(LOG, headers=GOOD))
        await eventually(lambda: slot.asked)
        slot.say(refusal="OSError: no source")
        assert (await asking).json()["error"] == "slot 0: OSError: no source"


async def test_more_questions_than_the_bound_are_refused() -> None:
    async with served() as (http, runner):
        slot = PlayedSlot(runner, 0)
        asking = [asyncio.create_task(runner.questions.ask(0, "log", wait_s=600)) for _ in range(MOST_QUESTIONS)]
        await eventually(lambda: len(slot.asked) == MOST_QUESTIONS)
        answer = await http.get(LOG, headers=GOOD)
        assert (answer.status_code, "questions to slots" in answer.json()["error"]) == (503, True)
        for asked in slot.asked:
            slot.say("line", number=asked.number)
        assert {await each for each in asking} == {("line",)}


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/jobs/flights/slots/9/log", 400, "has no slot 9"),
        ("/jobs/flights/slots/x/log", 404, "is not the number of a slot"),
        ("/jobs/flights/slots/\u0663/log", 404, "is not the number of a slot"),
        ("/jobs/flights/slots/0/files", 404, "ask for log or stacks"),
        ("/jobs/none/slots/0/log", 404, "job none is not known"),
    ],
)
async def test_what_cannot_be_asked_is_refused_in_words(path: str, status: int, told: str) -> None:
    async with served() as (http, _):
        answer = await http.get(path, headers=GOOD)
        assert (answer.status_code, told in answer.json()["error"]) == (status, True), answer.text
