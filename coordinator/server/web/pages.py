"""Routes of the page.

No route changes a job: buttons use the REST interface with the session's cookie and header (`rest.Guard`).
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from barrier_runtime.coordinator.client.rest_token import Token, is_token
from barrier_runtime.coordinator.client.rest_types import JobSummary, SlotLines
from barrier_runtime.coordinator.log.lease import Lease
from barrier_runtime.coordinator.page import render
from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.page.render import CommandLine, JobFacts
from barrier_runtime.coordinator.server.leases import LedElsewhere
from barrier_runtime.coordinator.server.rest_calls import job_and_run, slot_and_subject
from barrier_runtime.coordinator.server.web.sessions import (
    HEADERS,
    SESSION_MS,
    LoginLinks,
    LoginThrottle,
    PageSessions,
    now_ms,
    use,
)
from barrier_runtime.coordinator.server.web.ticker import PageTick, Ticker
from barrier_runtime.coordinator.status.shares import SubtaskWork
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.trend import TrendPoint
from barrier_runtime.coordinator.wire.messages import Subject
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore

audit = logging.getLogger("coordinator.audit")

MAX_READERS = 64
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_MAX_FORM_BYTES = 8 * 1024
_TARGET = re.compile(
    r"/(?:jobs/[a-z0-9-]{1,64}(?:/checkpoints(?:/[0-9]{1,19})?|/latency|/failures|/slots|/steps/[0-9]{1,9})?)?"
)
_NUMBER = re.compile(r"[0-9]{1,19}")
_RENDERED_S = 1.0  # sharing time of a rendered page
_ELSEWHERE_S = 30.0  # for jobs of other daemons: a LIST, and a GET per job
_AGES_MS = 60_000  # renew the ages in an idle list of jobs
_REASON_CHARACTERS = 600  # in a tick


@dataclass(frozen=True)
class PageSource:
    """`status` raises like REST; `known`: jobs that run here.

    `elsewhere` and `stored`: of jobs that other daemons lead.
    """

    jobs: Callable[[], list[JobSummary]]
    elsewhere: Callable[[], Awaitable[list[JobSummary]]]
    status: Callable[[str, str | None], Awaitable[JobStatus]]
    stored: Callable[[Lease], Awaitable[JobStatus | None]]
    known: Callable[[str], JobStatus | None]
    trend: Callable[[str, str], tuple[TrendPoint, ...]]
    steps: Callable[[str, str], dict[int, tuple[SubtaskWork, ...]]]
    lines: Callable[[str, str, int, Subject], Awaitable[tuple[str, ...]]]
    rows: Callable[[str, str, str], Awaitable[SlotLines]]
    store: ObjectStore  # of the jobs: shows the address, and records used login links


class Pages:
    def __init__(
        self, source: PageSource, token: Token, sessions: PageSessions, links: LoginLinks, command: CommandLine
    ) -> None:
        self._source = source
        self._token = token
        self._sessions = sessions
        self._links = links
        self._command = command
        self._throttle = LoginThrottle()
        self._ticker = Ticker(self._tick, time.monotonic)
        self._rendered: dict[str, tuple[float, str]] = {}
        self._rendering = asyncio.Lock()
        self._elsewhere = KeptFor(lambda: source.elsewhere(), _ELSEWHERE_S, time.monotonic)

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.login, methods=["GET"]),
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/", self.jobs, methods=["GET"]),
            Route("/events", self.events, methods=["GET"]),
            Route("/jobs", self.to_jobs, methods=["GET"]),
            Route("/jobs/{job}", self.job, methods=["GET"]),
            Route("/jobs/{job}/events", self.events, methods=["GET"]),
            Route("/jobs/{job}/report", self.report, methods=["GET"]),
            Route("/jobs/{job}/failures", self.failures, methods=["GET"]),
            Route("/jobs/{job}/steps/{chain}", self.step, methods=["GET"]),
            Route("/jobs/{job}/steps/{chain}/rows", self.rows, methods=["GET"]),
            Route("/jobs/{job}/latency", self.latency, methods=["GET"]),
            Route("/jobs/{job}/slots", self.slots, methods=["GET"]),
            Route("/jobs/{job}/slots/{slot}/{subject}", self.slot, methods=["GET"]),
            Route("/jobs/{job}/checkpoints", self.checkpoints, methods=["GET"]),
            Route("/jobs/{job}/checkpoints/{checkpoint}", self.checkpoint, methods=["GET"]),
        ]

    async def login(self, request: Request) -> Response:
        code = request.query_params.get("once")
        if code is None or request.method == "HEAD":  # a link preview must not use the link up
            return _html(render.login_page())
        target = _target(request.query_params.get("to", "/"))
        mark = self._links.mark(code, now_ms())
        if mark is None:
            return self._refused("This link is older than an hour, or of another coordinator.", code, target)
        try:
            if not await asyncio.to_thread(use, self._source.store, mark, now_ms()):
                return self._refused("This link was used already: each works once.", code, target)
        except Unavailable as error:
            return self._refused(f"This link cannot be checked now, {error}: try again.", code, target, 503)
        audit.info("token %s: logged in at the page by a link", self._token.name)
        # A redirect would belong to a navigation from elsewhere, for which a browser sends no strict cookie.
        return self._with_session(request, _html(render.opened_page(target)))

    def _refused(self, trouble: str, code: str, target: str, status: int = 401) -> Response:
        """Only holders of a link see the token's file in the command."""
        command = self._command if self._links.is_ours(code) else render.CommandLine()
        found = re.match(r"/jobs/([a-z0-9-]+)", target)
        return _html(render.login_page(trouble, line=command.line("page", found[1] if found else "JOB")), status)

    async def log_in(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _html(render.login_page("The form was sent from another site."), 403)
        client = request.client.host if request.client is not None else ""
        form = parse_qs((await _body(request)).decode("ascii", "replace"))
        # Other clients at the same address must not lock a right token out.
        if not is_token(form.get("token", [""])[0], self._token):
            wait_ms = self._throttle.wait_ms(client, now_ms())
            if wait_ms:
                wait_s = -(-wait_ms // 1000)
                answer = _html(render.login_page("Too many wrong tokens.", wait_s), 429)
                answer.headers["Retry-After"] = str(wait_s)
                return answer
            self._throttle.wrong(client, now_ms())
            audit.warning("a wrong token was given at the page")
            return _html(render.login_page("This is not the token of this coordinator."), 401)
        self._throttle.right(client)
        audit.info("token %s: logged in at the page", self._token.name)
        return self._with_session(request, RedirectResponse("/", 303, headers=HEADERS))

    async def log_out(self, request: Request) -> Response:
        answer = RedirectResponse("/login", 303, headers=HEADERS)
        answer.delete_cookie(self._sessions.cookie, path="/", httponly=True, samesite="strict")
        return answer

    def _with_session(self, request: Request, answer: Response) -> Response:
        answer.set_cookie(
            self._sessions.cookie,
            self._sessions.begin(secrets.token_hex(16), now_ms()),
            max_age=SESSION_MS // 1000,
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            data = render.static_file(name)
        except KeyError:
            raise HTTPException(404, "there is no such file") from None
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(data, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])

    async def to_jobs(self, request: Request) -> Response:
        return RedirectResponse("/", 303, headers=HEADERS)

    async def jobs(self, request: Request) -> Response:
        elsewhere = await self._elsewhere.get()
        here = self._source.jobs()
        names = {job.job for job in here}
        jobs = [*here, *(job for job in elsewhere if job.job not in names)]
        words, kind = (request.query_params.get(name, "") for name in ("q", "show"))
        return _html(render.jobs_page(jobs, self._source.store.url, words, kind))

    async def job(self, request: Request) -> Response:
        job, run = job_and_run(request)
        key = f"{job} {run or ''}"
        async with self._rendering:  # concurrent requests share a page
            made_s, html = self._rendered.get(key, (0.0, ""))
            if not html or time.monotonic() - made_s > _RENDERED_S:
                # On a thread: rendering takes milliseconds, and must not delay a barrier.
                known = await self._status(job, run)
                html = await asyncio.to_thread(lambda: render.job_page(self._explained(*known)))
                self._rendered = {key: (time.monotonic(), html)}
        return _html(html)

    async def checkpoints(self, request: Request) -> Response:
        return _html(render.checkpoints_page(await self._facts(request)))

    async def failures(self, request: Request) -> Response:
        return _html(render.failures_page(await self._facts(request)))

    async def step(self, request: Request) -> Response:
        facts, number = await self._facts(request), request.path_params["chain"]
        chain = next((each for each in facts.status.chains if str(each.chain) == number), None)
        if chain is None:
            return _html(
                render.message_page("No such chain", f"Job {facts.status.job} has no chain {number[:20]}."), 404
            )
        work = self._source.steps(facts.status.job, facts.status.run_id).get(chain.chain, ())
        return _html(render.step_page(facts, chain, work))

    async def latency(self, request: Request) -> Response:
        return _html(render.latency_page(await self._facts(request)))

    async def slots(self, request: Request) -> Response:
        return _html(render.slots_page(await self._facts(request)))

    async def slot(self, request: Request) -> Response:
        """Audited: records may quote rows."""
        number, subject = slot_and_subject(request)
        facts = await self._facts(request)
        audit.info("token %s: looked at %s of slot %d of job %s", self._token.name, subject, number, facts.status.job)
        slot = next((each for each in facts.status.slots if each.slot == number), None)
        lines = await self._source.lines(facts.status.job, facts.status.run_id, number, subject)
        return _html(render.slot_page(facts, number, slot, subject, lines))

    async def rows(self, request: Request) -> Response:
        facts, step = await self._facts(request), request.query_params.get("step", "")
        audit.info("token %s: looked at rows of a step of job %s", self._token.name, facts.status.job)
        found = await self._source.rows(facts.status.job, facts.status.run_id, step)
        return _html(render.rows_page(facts, step, found))

    async def checkpoint(self, request: Request) -> Response:
        facts = await self._facts(request)
        number = request.path_params["checkpoint"]
        first = request.query_params.get("from", "0")
        html = None
        if _NUMBER.fullmatch(number):
            rows_from = int(first) if _NUMBER.fullmatch(first) else 0
            html = await asyncio.to_thread(render.checkpoint_page, facts, int(number), rows_from)
        if html is None:
            text = f"Job {facts.status.job} remembers its last 100 checkpoints; {number[:20]} is not one of them."
            return _html(render.message_page(f"No checkpoint {number[:20]}", text), 404)
        return _html(html)

    async def report(self, request: Request) -> Response:
        status, _, leader = await self._status(*job_and_run(request))
        return await report_of(status, () if leader else self._source.trend(status.job, status.run_id))

    async def _facts(self, request: Request) -> JobFacts:
        return await asyncio.to_thread(self._explained, *await self._status(*job_and_run(request)))

    async def _status(self, job: str, run: str | None) -> tuple[JobStatus, str, str]:
        """Returns the status, why the page is read-only, and another leader's address."""
        try:
            status = await self._source.status(job, run)
            now = None if run is None else self._source.known(job)
            other = now is not None and now.run_id != status.run_id
            return status, f"this is run {status.run_id}, and the job's present run is another" if other else "", ""
        except LedElsewhere as error:
            stored = await self._source.stored(error.lease)
            if stored is None:  # the run has ended, or not begun
                raise
            why = f"this daemon stands by. What is shown is what daemon {error.lease.leader} has stored"
            return stored, why, error.url

    def _explained(self, status: JobStatus, read_only: str, leader: str) -> JobFacts:
        trend = () if leader else self._source.trend(status.job, status.run_id)
        return render.explained(status, _time_of(status), self._command, read_only, leader, trend)

    async def events(self, request: Request) -> Response:
        name = request.path_params.get("job", "")
        if name and self._source.known(check_job_id(name)) is None:
            return Response(status_code=204)  # a browser does not retry after this answer
        if self._ticker.readers >= MAX_READERS:
            raise HTTPException(503, "too many pages are open: close some")
        now = now_ms()
        ends_ms = self._sessions.of_cookies(request.headers.get("cookie", ""), now) or now
        stream = self._ticker.follow(name, time.monotonic() + (ends_ms - now) / 1000)
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    def _tick(self, name: str) -> PageTick:
        if not name:
            jobs = self._source.jobs()
            changes = repr([msgspec.structs.replace(job, at_ms=job.at_ms // _AGES_MS) for job in jobs])
            return PageTick({}, changes, repr([(job.run_id, job.phase, job.condition) for job in jobs]))
        status = self._source.known(name)
        if status is None:
            return PageTick({}, "", "unknown")
        figures = {key: render.inert(text[:_REASON_CHARACTERS]) for key, text in live(status, _time_of(status)).items()}
        last = status.checkpoints.history[-1] if status.checkpoints.history else None
        events = (status.phase, status.token, len(status.recoveries), len(status.failures), len(status.takeovers))
        changes = repr((events, last and last.checkpoint, status.records, status.commits))
        return PageTick(figures, changes, status.outcome or "")


def pages_for(
    source: PageSource, token: Token, sessions: PageSessions, links: LoginLinks, url: str, token_file: str
) -> ASGIApp:
    """May be called in a thread."""
    render.load()
    pages = Pages(source, token, sessions, links, CommandLine(url, token_file))
    app = Starlette(routes=pages.routes(), exception_handlers={HTTPException: _on_http, BarrierRuntimeError: _on_error})
    app.router.redirect_slashes = False
    return app


async def report_of(status: JobStatus, trend: tuple[TrendPoint, ...] = ()) -> Response:
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{status.job}-report.html"'}
    html = await asyncio.to_thread(lambda: render.report(render.explained(status, _time_of(status), trend=trend)))
    return Response(html, headers=headers, media_type="text/html")


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, headers=dict(HEADERS), media_type="text/html")


def _time_of(status: JobStatus) -> int:
    """A stored status has no time."""
    return status.at_ms or now_ms()


def _target(path: str) -> str:
    """Returns a page of this daemon, never another address."""
    return path if _TARGET.fullmatch(path) else "/"


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, f"the form may have at most {_MAX_FORM_BYTES} bytes")
    return bytes(body)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _html(render.message_page("This page cannot be shown", str(error.detail)), error.status_code)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, LedElsewhere):
        return _html(render.message_page("This daemon stands by", str(error), error.url))
    status = 400 if isinstance(error, InvalidJob) else 503 if isinstance(error, Unavailable) else 500
    return _html(render.message_page("This page cannot be shown", str(error)), status)


# A value that open pages share for some seconds, to save store requests.

Value = TypeVar("Value")


class KeptFor(Generic[Value]):
    def __init__(self, make: Callable[[], Awaitable[Value]], lasts_s: float, clock_s: Callable[[], float]) -> None:
        """`clock_s` is monotonic. After an exception of `make` the next caller tries again."""
        self._make = make
        self._lasts_s = lasts_s
        self._clock_s = clock_s
        self._made: tuple[float, Value] | None = None
        self._making = asyncio.Lock()

    async def get(self) -> Value:
        async with self._making:  # concurrent callers wait for a single value
            if self._made is None or self._clock_s() - self._made[0] >= self._lasts_s:
                value = await self._make()
                self._made = self._clock_s(), value
            return self._made[1]
