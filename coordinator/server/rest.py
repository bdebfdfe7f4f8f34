"""REST interface of a daemon: health, status, submit, trigger, stop. No code, files or settings.

Every route but `/healthz` needs a signature or the bearer token (`guard`). State-changing calls need the header
`X-Barrier-Runtime: 1` (a browser's form cannot send it), are idempotent by `X-Request-Id`, and are audited. No CORS
header is ever sent. The session cookie of the page (`web`) counts as the token, except for new login links and for
submitting a job, whose answer has the job's secret.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.client.rest_token import STORAGE_HEADER, Signatures, Token, masked
from barrier_runtime.coordinator.client.rest_types import (
    DaemonReply,
    ErrorReply,
    JobSummary,
    LoginLinkReply,
    ReplaceAsked,
    RescaleAsked,
    SavepointAsked,
    StopRequest,
    SubmitReply,
    TriggerReply,
)
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.job.status_view import news_version
from barrier_runtime.coordinator.server import rest_calls
from barrier_runtime.coordinator.server.guard import CALLER, HEADERS, Caller, Guard
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.leases import LedElsewhere
from barrier_runtime.coordinator.server.logs import place_of
from barrier_runtime.coordinator.server.rest_calls import body_of, job_and_run, json_answer, number_in, wait_s_of
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.server.telemetry.prometheus import CONTENT_TYPE, exposition
from barrier_runtime.coordinator.server.web.sessions import LoginLinks, PageSessions, PagesOrRest, now_ms
from barrier_runtime.coordinator.status.health import ended_in_words
from barrier_runtime.coordinator.status.history import STANDBY
from barrier_runtime.coordinator.status.status import JobStatus, Room, bounded, with_holders, without_subtasks
from barrier_runtime.coordinator.status.why.job import answer
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.open import lies_within, open_store
from barrier_runtime.state.store.urls import shown

_REMEMBERED_REQUESTS = 1_000
_SPEC = msgspec.json.Decoder(JobSpec)
_ROOM = msgspec.json.Decoder(Room)
_SAVEPOINT = msgspec.json.Decoder(SavepointAsked)
_REPLACE = msgspec.json.Decoder(ReplaceAsked)
_RESCALE = msgspec.json.Decoder(RescaleAsked)
_STOP = msgspec.json.Decoder(StopRequest)


@dataclass(frozen=True)
class ControlAddress:
    """`of_program`: the coordinator ends with the program of its job."""

    host: str
    port: int
    of_program: bool = False


@dataclass(frozen=True)
class PageAddress:
    url: str = "http://127.0.0.1:PORT"
    token_file: str = "FILE"


class Api:
    def __init__(
        self,
        directory: JobDirectory,
        control: ControlAddress,
        pid: int,
        key: bytes,
        links: LoginLinks | None = None,
        savepoint_roots: Sequence[str] = (),
    ) -> None:
        """`key`: of signatures, hides secrets in answers. `links`: None without a page.

        `savepoint_roots`: folders for savepoints; none: any folder.
        """
        self._directory = directory
        self._control = control
        self._pid = pid
        self._key = key
        self._links = links
        self._savepoint_roots = tuple(savepoint_roots)
        self._answered: OrderedDict[str, Response] = OrderedDict()
        self._inspection = rest_calls.Inspection(self._runner)
        self._leaving = rest_calls.LeavingHosts(directory, self._runner)

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/daemon", self.daemon, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/jobs", self.jobs, methods=["GET"]),
            Route("/jobs/{job}", self.job, methods=["GET"]),
            Route("/jobs/{job}", self.submit, methods=["PUT"]),
            Route("/jobs/{job}/checkpoints", self.checkpoints, methods=["GET"]),
            Route("/jobs/{job}/why", self.why, methods=["GET"]),
            Route("/jobs/{job}/room", self.room, methods=["PUT"]),
            Route("/jobs/{job}/checkpoints", self.trigger, methods=["POST"]),
            Route("/jobs/{job}/savepoints", self.savepoints, methods=["GET"]),
            Route("/jobs/{job}/savepoints", self.savepoint, methods=["POST"]),
            Route("/jobs/{job}/rescale", self.rescale, methods=["POST"]),
            Route("/jobs/{job}/replace", self.replace, methods=["POST"]),
            Route("/jobs/{job}/stop", self.stop, methods=["POST"]),
            Route("/jobs/{job}/report", self.report, methods=["GET"]),
            Route("/login-links", self.login_link, methods=["POST"]),
            *self._inspection.routes(),
            *self._leaving.routes(),
        ]

    async def healthz(self, request: Request) -> Response:
        return json_answer({"status": "ok", "pid": self._pid})

    async def daemon(self, request: Request) -> Response:
        at = self._control
        return json_answer(DaemonReply(at.host, at.port, self._directory.store_url, at.of_program))

    async def metrics(self, request: Request) -> Response:
        statuses = [runner.status() for _, runner in sorted(self._directory.jobs.items())]
        now_ms = max((status.at_ms for status in statuses), default=0)
        text = await asyncio.to_thread(exposition, statuses, now_ms)  # about 50 ms for a large job
        return Response(text, headers={**HEADERS, "Content-Type": CONTENT_TYPE})

    async def jobs(self, request: Request) -> Response:
        return json_answer(self.summaries())

    def summaries(self) -> list[JobSummary]:
        return [runner.summary() for _, runner in sorted(self._directory.jobs.items())]

    async def elsewhere(self) -> list[JobSummary]:
        return [
            JobSummary(
                job=lease.job,
                run_id=lease.run_id,
                phase=STANDBY.lower(),
                outcome=None,
                condition=STANDBY,
                condition_reason=f"led by daemon {lease.leader} at {lease.http}",
            )
            for lease in await self._directory.elsewhere()
        ]

    async def job(self, request: Request) -> Response:
        """With `unless=` and `wait=` (s), answers once the version differs, or after that time.

        Omits the large subtasks of past checkpoints. With `brief=1`, a status of the version in `unless=` is brief.
        """
        asked, wait_s = job_and_run(request), wait_s_of(request)
        known, runner = request.query_params.get("unless"), await self._find(*asked)
        if wait_s and runner is not None and known == _version(runner):
            await runner.changed(wait_s)
            runner = await self._find(*asked)
        brief = request.query_params.get("brief") == "1" and runner is not None and known == _version(runner)
        return json_answer(without_subtasks(await self.status(*asked, brief=brief)))

    async def checkpoints(self, request: Request) -> Response:
        checkpoints = (await self.status(*job_and_run(request))).checkpoints
        history = tuple(msgspec.structs.replace(each, phases=b"") for each in checkpoints.history)
        return json_answer(msgspec.structs.replace(checkpoints, history=history))

    async def report(self, request: Request) -> Response:
        from barrier_runtime.coordinator.server.web.pages import report_of

        status = await self.status(*job_and_run(request))
        return await report_of(status, rest_calls.trend_of_run(self._directory, status.job, status.run_id))

    async def login_link(self, request: Request) -> Response:
        if self._links is None:
            raise HTTPException(404, "this coordinator has no page: start it without --no-ui, or with ui=True")
        if not _caller(request).holds_token:
            raise HTTPException(403, "a new link needs the token: a session must not make itself longer")
        code = self._links.make(secrets.token_hex(16), now_ms())
        return json_answer(LoginLinkReply(f"/login?once={code}"))

    async def savepoints(self, request: Request) -> Response:
        return json_answer((await self.status(*job_and_run(request))).savepoints)

    async def savepoint(self, request: Request) -> Response:
        runner = await self._runner(request)
        try:
            asked = _SAVEPOINT.decode(await body_of(request))
        except UNREADABLE as error:
            raise InvalidJob(
                f'the body is not understood ({error}): send {{"id": "<a uuid>", "url": "<folder>"}}'
            ) from error
        wanted = await self._checked(asked, stops=False)
        runner.savepoint(wanted)
        return json_answer(TriggerReply("accepted", ""), 202)

    async def rescale(self, request: Request) -> Response:
        runner = await self._runner(request)
        try:
            asked = _RESCALE.decode(await body_of(request))
        except UNREADABLE as error:
            raise InvalidJob(
                f'the body is not understood ({error}): send {{"id": "<a uuid>", "parallelism": 4}}'
            ) from error
        if asked.timeout_ms <= 0:
            raise InvalidJob(f"timeout_ms={asked.timeout_ms}: give milliseconds for the new slots to come")
        runner.rescale(RescaleRequest(check_job_id(asked.id, "rescale id"), asked.parallelism, asked.timeout_ms))
        return json_answer(TriggerReply("accepted", ""), 202)

    async def replace(self, request: Request) -> Response:
        runner = await self._runner(request)
        try:
            asked = _REPLACE.decode(await body_of(request))
        except UNREADABLE as error:
            raise InvalidJob(
                f'the body is not understood ({error}): send {{"id": "<a uuid>", "flow": "app.py:flow"}}'
            ) from error
        id = check_job_id(asked.id, "replace id")
        if asked.timeout_ms <= 0:
            raise InvalidJob(f"timeout_ms={asked.timeout_ms}: give milliseconds for the new slots to come")
        if not asked.flow and asked.spec is None and not asked.error:
            raise InvalidJob('nothing says what to go on with: send "flow": "app.py:flow"')
        spec = None if asked.flow else asked.spec
        if not asked.error:
            runner.replace(RescaleRequest(id, 1, asked.timeout_ms, spec, asked.flow, asked.allow_non_restored))
        if not asked.flow:
            runner.program_loaded(id, spec, asked.error)
        return json_answer(TriggerReply("accepted", ""), 202)

    async def why(self, request: Request) -> Response:
        return json_answer(answer(await self.status(*job_and_run(request)), number_in(request, "checkpoint")))

    async def room(self, request: Request) -> Response:
        runner = await self._runner(request)
        try:
            room = _ROOM.decode(await body_of(request))
        except UNREADABLE as error:
            raise InvalidJob(f'the body is not understood ({error}): send {{"cores": 8, "held_by": {{}}}}') from error
        runner.tell_room(bounded(room))
        return json_answer(TriggerReply("accepted", ""), 202)

    async def submit(self, request: Request) -> Response:
        caller = _caller(request)
        if not caller.holds_token:
            raise HTTPException(403, "submitting a job needs the token: a session must not learn the job's secret")
        job = check_job_id(request.path_params["job"])
        try:
            spec = _SPEC.decode(await body_of(request))
        except UNREADABLE as error:
            raise InvalidJob(f"the body is not a job description ({error}): send a JobSpec as JSON") from error
        if spec.job != job:
            raise InvalidJob(f"the path names job {job!r}, the body {spec.job!r}: make them the same")
        self._check_storage(unquote(request.headers.get(STORAGE_HEADER, "")))
        runner = await self._directory.submit(spec)
        secret = self._directory.secret(job, spec.run_id)
        shown_secret = masked(self._key, caller.nonce, secret) if caller.nonce else secret
        return json_answer(SubmitReply(runner.phase, shown_secret.hex(), self._control.host, self._control.port))

    def _check_storage(self, of_program: str) -> None:
        if of_program and of_program != self._directory.store_url:
            raise InvalidJob(
                f"this daemon keeps checkpoints in {self._directory.store_url}, the program in {of_program}: "
                f"start the program with checkpoints={self._directory.store_url!r}, or use a daemon with its --storage"
            )

    async def trigger(self, request: Request) -> Response:
        runner = await self._runner(request)
        return await self._once(request, lambda: self._trigger(runner))

    async def stop(self, request: Request) -> Response:
        runner = await self._runner(request)
        body = await body_of(request)
        try:
            wanted = _STOP.decode(body or b"{}")
        except UNREADABLE as error:
            raise InvalidJob(
                f'the body is not understood ({error}): send {{"mode": "checkpoint"}}, "drain" or "now"'
            ) from error
        savepoint = None if wanted.savepoint is None else await self._checked(wanted.savepoint, stops=True)
        if savepoint is not None and wanted.mode == "now":
            raise InvalidJob("a job that is stopped at once takes no savepoint: stop it with mode checkpoint")
        return await self._once(request, lambda: self._stop(runner, wanted.mode, savepoint))

    async def _checked(self, asked: SavepointAsked, *, stops: bool) -> SavepointRequest:
        """Raises `InvalidJob` for an unwritable or forbidden folder."""
        roots = self._savepoint_roots
        if roots and not any(lies_within(asked.url, root) for root in roots):
            raise InvalidJob(
                f"this daemon takes no savepoints in {shown(asked.url)}, only below {', '.join(map(shown, roots))}: "
                "name a folder there, or start the daemon with another --savepoint-roots"
            )
        try:
            await asyncio.to_thread(open_store, asked.url)
        except OSError as error:
            raise Unavailable(f"the folder {shown(asked.url)} does not answer: {error}: try again") from error
        return SavepointRequest(check_job_id(asked.id, "savepoint id"), asked.url, stops)

    def _trigger(self, runner: JobRunner) -> Response:
        if runner.phase != "running":
            return json_answer(TriggerReply("refused", f"the job is {runner.phase}, not running: try again later"), 409)
        runner.trigger()
        return json_answer(TriggerReply("accepted", ""), 202)

    def _stop(
        self, runner: JobRunner, mode: Literal["checkpoint", "drain", "now"], savepoint: SavepointRequest | None
    ) -> Response:
        end = runner.end
        runner.stop(mode, savepoint)
        if end is not None:
            return json_answer(TriggerReply("refused", _ended(runner.spec.job, end.outcome, end.reason)), 409)
        return json_answer(TriggerReply("accepted", ""), 202)

    async def _once(self, request: Request, act: Callable[[], Response]) -> Response:
        request_id = request.headers.get("x-request-id")
        if request_id is None:
            return act()
        if len(request_id) > 128:
            raise InvalidJob("X-Request-Id is longer than 128 characters: use a uuid")
        key = f"{request.method} {request.url.path} {request.url.query} {request_id}"
        if key not in self._answered:
            self._answered[key] = act()
            while len(self._answered) > _REMEMBERED_REQUESTS:
                self._answered.popitem(last=False)
        return self._answered[key]

    async def status(self, job: str, run: str | None, *, brief: bool = False) -> JobStatus:
        runner = await self._find(job, run)
        if runner is not None:
            jobs = self._directory.jobs.items()
            held = {name: each.connected_slots for name, each in jobs if each.outcome is None}
            return with_holders(runner.status(brief=brief), held)
        past = await self._directory.past(job, run)
        if past is None:
            raise _unknown(job)
        return past

    def known(self, job: str) -> JobStatus | None:
        runner = self._directory.job(job)
        return None if runner is None else runner.status()

    async def _runner(self, request: Request) -> JobRunner:
        job, run = job_and_run(request)
        runner = await self._find(job, run)
        if runner is None:
            past = await self._directory.past(job, run)
            raise _unknown(job) if past is None else HTTPException(404, _ended(job, past.phase, past.reason))
        return runner

    async def _find(self, job: str, run: str | None) -> JobRunner | None:
        lease = await self._directory.leader_elsewhere(job, run)
        if lease is not None:
            raise LedElsewhere(lease)
        return self._directory.job(job) if run is None else self._directory.run(job, run)


def _version(runner: JobRunner) -> str:
    now = runner.summary()
    return news_version(runner.facts, now.phase, now.outcome, now.condition, now.condition_reason)


def application(
    directory: JobDirectory,
    control: ControlAddress,
    token: Token,
    pid: int,
    page: PageAddress | None = PageAddress(),
    savepoint_roots: Sequence[str] = (),
) -> ASGIApp:
    """`page`: None for REST alone."""
    links = None if page is None else LoginLinks(token.value)
    signatures = Signatures(token.value)
    api = Api(directory, control, pid, signatures.key, links, savepoint_roots)
    app = Starlette(
        routes=api.routes(),
        exception_handlers={
            HTTPException: _on_http,
            BarrierRuntimeError: _on_error,
            Exception: _on_defect,
        },
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host header
    if page is None or links is None:
        return Guard(app, token, signatures)
    sessions = PageSessions(token.value)

    def make_pages() -> ASGIApp:
        from barrier_runtime.coordinator.server.web.pages import PageSource, pages_for

        source = PageSource(
            api.summaries,
            api.elsewhere,
            api.status,
            directory.stored,
            api.known,
            partial(rest_calls.trend_of_run, directory),
            partial(rest_calls.steps_of_run, directory),
            partial(rest_calls.lines_of_run, directory),
            partial(rest_calls.rows_of_run, directory),
            directory.store,
        )
        return pages_for(source, token, sessions, links, page.url, page.token_file)

    return PagesOrRest(make_pages, Guard(app, token, signatures, sessions), sessions)


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope[CALLER]
    return caller


def _ended(job: str, outcome: str, reason: str) -> str:
    return f"job {job} has ended ({ended_in_words(outcome)}){f': {reason}' if reason else ''}"


def _unknown(job: str) -> HTTPException:
    return HTTPException(
        404, f"job {job} is not known to this coordinator: `barrier-runtime status` or GET /jobs lists those that are"
    )


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_answer(ErrorReply(error.detail), error.status_code)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, LedElsewhere):
        return json_answer(ErrorReply(str(error), error.url), 421)
    status = 400 if isinstance(error, InvalidJob) else 503 if isinstance(error, Unavailable) else 500
    return json_answer(ErrorReply(str(error)), status)


async def _on_defect(request: Request, error: Exception) -> Response:
    text = f"this request met a defect, {place_of(error)}: the coordinator's log has the stack; ask again"
    return json_answer(ErrorReply(text), 500)
