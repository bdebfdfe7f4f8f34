"""Parts of REST calls; routes of views and of leaving hosts."""

from collections.abc import Awaitable, Callable, Iterable
from typing import get_args

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barrier_runtime.coordinator.client.rest_types import (
    LONGEST_WAIT_S,
    LeavingAsked,
    LeavingReply,
    RowsAsked,
    SlotLines,
)
from barrier_runtime.coordinator.server.guard import HEADERS, MAX_BODY_BYTES
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.shares import SubtaskWork, subtask_work
from barrier_runtime.coordinator.status.trend import TrendPoint
from barrier_runtime.coordinator.wire.messages import MOST_ROWS, Subject
from barrier_runtime.state.errors import UNREADABLE, InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id

_DIGITS = 18


def job_and_run(request: Request) -> tuple[str, str | None]:
    """Without a run, a person means the last run."""
    run = request.query_params.get("run")
    return check_job_id(request.path_params["job"]), None if run is None else check_job_id(run)


def wait_s_of(request: Request) -> float:
    given = request.query_params.get("wait", "0")
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= LONGEST_WAIT_S:
        raise InvalidJob(f"wait={given!r} is not understood: give seconds, at most {LONGEST_WAIT_S:g}")
    return wait_s


def number_in(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is not None and not (text.isdecimal() and text.isascii() and len(text) <= _DIGITS):
        raise InvalidJob(f"{name}={text!r} is not a number: give one, such as {name}=42")
    return None if text is None else int(text)


async def body_of(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, headers=dict(HEADERS), media_type="application/json")


# Views of a running job beyond the status.

_ROWS = msgspec.json.Decoder(RowsAsked)


class Inspection:
    def __init__(self, runner_of: Callable[[Request], Awaitable[JobRunner]]) -> None:
        self._runner_of = runner_of

    def routes(self) -> list[Route]:
        return [
            Route("/jobs/{job}/trend", self.trend, methods=["GET"]),
            Route("/jobs/{job}/steps", self.steps, methods=["GET"]),
            Route("/jobs/{job}/slots/{slot}/{subject}", self.lines, methods=["GET"]),  # audited by the guard
            Route("/jobs/{job}/rows", self.rows, methods=["POST"]),  # audited: rows are data of the job
        ]

    async def trend(self, request: Request) -> Response:
        """Rate, lag and backlog of the last hour, a point per 10 s."""
        return json_answer(trend_of(await self._runner_of(request)))

    async def steps(self, request: Request) -> Response:
        """Work of each subtask in the last 10 s, by chain."""
        return json_answer(steps_of(await self._runner_of(request)))

    async def lines(self, request: Request) -> Response:
        slot, subject = slot_and_subject(request)
        runner = await self._runner_of(request)
        return json_answer(SlotLines(slot, await runner.questions.ask(slot, subject)))

    async def rows(self, request: Request) -> Response:
        runner = await self._runner_of(request)
        try:
            asked = _ROWS.decode(await body_of(request))
        except UNREADABLE as error:
            raise InvalidJob(f'the body is not understood ({error}): send {{"step": "NAME", "rows": 10}}') from error
        return json_answer(await rows_of(runner, asked))


_LEAVING = msgspec.json.Decoder(LeavingAsked)
_LONGEST_HOST = 255


class LeavingHosts:
    def __init__(self, directory: JobDirectory, runner_of: Callable[[Request], Awaitable[JobRunner]]) -> None:
        self._directory = directory
        self._runner_of = runner_of

    def routes(self) -> list[Route]:
        return [
            Route("/leaving", self.all, methods=["POST"]),
            Route("/jobs/{job}/leaving", self.one, methods=["POST"]),
        ]

    async def all(self, request: Request) -> Response:
        return json_answer(leave(await _host_in(request), self._directory.jobs.values()), 202)

    async def one(self, request: Request) -> Response:
        runner = await self._runner_of(request)
        return json_answer(leave(await _host_in(request), (runner,)), 202)


async def _host_in(request: Request) -> str:
    """The query may name the host: a `preStop` hook sends no body."""
    body = await body_of(request)
    try:
        host = _LEAVING.decode(body).host if body else request.query_params.get("host", "")
    except UNREADABLE as error:
        raise InvalidJob(f'the body is not understood ({error}): send {{"host": "<name>"}}') from error
    if not host or len(host) > _LONGEST_HOST or not host.isprintable():
        raise InvalidJob("no host is named: send host=NAME, as the status of a job shows the hosts of slots")
    return host


def leave(host: str, runners: Iterable[JobRunner]) -> LeavingReply:
    return LeavingReply({runner.spec.job: runner.leave(host) for runner in runners if runner.outcome is None})


async def rows_of(runner: JobRunner, asked: RowsAsked) -> SlotLines:
    chain = next((each for each in runner.spec.chains if asked.step in each.operators), None)
    if chain is None:
        names = ", ".join(name for each in runner.spec.chains for name in each.operators)
        raise InvalidJob(f"job {runner.spec.job} has no step {asked.step[:100]!r}: {names[:2_000]}")
    if not 1 <= asked.rows <= MOST_ROWS:
        raise InvalidJob(f"rows={asked.rows}: a preview has 1 to {MOST_ROWS} rows")
    slot = asked.slot
    if slot is None:
        work = steps_of(runner)[chain.chain]
        slot = max(work, key=lambda each: each.rows_in_per_s or 0.0).slot if work else 0
    return SlotLines(slot, await runner.questions.rows(slot, asked.step, asked.rows))


def slot_and_subject(request: Request) -> tuple[int, Subject]:
    """Raises 404 for other paths."""
    number, subject = request.path_params["slot"], request.path_params["subject"]
    if not (number.isdecimal() and number.isascii() and len(number) <= 9):
        raise HTTPException(404, f"{number[:20]!r} is not the number of a slot")
    for known in get_args(Subject):
        if subject == known:
            return int(number), known
    raise HTTPException(404, f"a slot has no {subject[:20]!r}: ask for {' or '.join(get_args(Subject))}")


def trend_of(runner: JobRunner) -> tuple[TrendPoint, ...]:
    return runner.facts.record.trend.points(runner.summary().at_ms)


def steps_of(runner: JobRunner) -> dict[int, tuple[SubtaskWork, ...]]:
    job = runner.facts
    reports = {slot.index: slot.figures for slot in job.slots.connected}
    return {chain.chain: subtask_work(chain, reports) for chain in job.spec.chains}


def trend_of_run(directory: JobDirectory, job: str, run_id: str) -> tuple[TrendPoint, ...]:
    runner = directory.run(job, run_id)
    return () if runner is None else trend_of(runner)


def steps_of_run(directory: JobDirectory, job: str, run_id: str) -> dict[int, tuple[SubtaskWork, ...]]:
    runner = directory.run(job, run_id)
    return {} if runner is None else steps_of(runner)


async def rows_of_run(directory: JobDirectory, job: str, run_id: str, step: str) -> SlotLines:
    return await rows_of(_led(directory, job, run_id), RowsAsked(step))


async def lines_of_run(directory: JobDirectory, job: str, run_id: str, slot: int, subject: Subject) -> tuple[str, ...]:
    return await _led(directory, job, run_id).questions.ask(slot, subject)


def _led(directory: JobDirectory, job: str, run_id: str) -> JobRunner:
    runner = directory.run(job, run_id)
    if runner is None or runner.outcome is not None:
        raise Unavailable(f"this run of job {job} has ended, or is led by another daemon: no slot can be asked")
    return runner
