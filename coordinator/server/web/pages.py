"""Routes of the page: HTML for a logged-in browser, beside the REST interface at the same address.

| request | answer |
|---|---|
| `GET /login?once=CODE` | a session, if the link is fresh and unused; a page that leads on |
| `POST /login` with a token | a session; 401 for a wrong token, 429 while the client has to wait |

No route changes a job: buttons use the REST interface with the session's cookie and header (`rest.Guard`).

While pages are open, a tick per second makes the figures of each topic (a job's name, or "" for the list of jobs):

| no reader | no task, no tick |
| first reader of a topic | the task starts, the reader gets a tick at once |
| each second | the topic's bytes are made once; every reader of the topic wakes up and takes the newest |
| a slow reader | misses ticks, never delays others, holds only the newest bytes |
| last reader leaves | the task ends with the next round |

A tick carries figures as text and the number of the newest page; a page with another number requests the new page. That
number rises at most every `PAGE_S` seconds.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from barrier_runtime.coordinator.client.rest_token import Token, is_token
from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.log.lease import Lease
from barrier_runtime.coordinator.page import render
from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.page.render import CommandLine, JobFacts
from barrier_runtime.coordinator.server.leases import LedElsewhere
from barrier_runtime.coordinator.server.web.front import HEADERS, now_ms
from barrier_runtime.coordinator.server.web.sessions import SESSION_MS, LoginLinks, LoginThrottle, PageSessions, use
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore

log = logging.getLogger("coordinator.page")

TICK_S = 1.0
PAGE_S = 5.0
KEEP_ALIVE_S = 15.0
MAX_READERS = 64
_KEEP_ALIVE = b": still here\n\n"


class PageTick(msgspec.Struct, frozen=True):
    """A tick. `changes`: equal if the page differs only in figures. `urgent`: show at once."""

    figures: dict[str, str]
    changes: str
    urgent: bool = False


class _Sent(msgspec.Struct, frozen=True):
    page: int
    figures: dict[str, str]


@dataclass
class _Topic:
    readers: int = 0
    data: bytes = b""
    number: int = 0  # of the data
    page: int = 0
    page_s: float = 0.0  # last rise of `page`
    changes: str = ""
    # The next tick sets another future. No Condition: a reader that anyio cancels twice would release another reader's
    # lock, or leave a lock held.
    fresh: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Ticker:
    def __init__(self, look: Callable[[str], PageTick], clock_s: Callable[[], float]) -> None:
        """`look` makes a topic's tick without blocking; an exception skips the tick."""
        self._look = look
        self._clock_s = clock_s
        self._topics: dict[str, _Topic] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        return sum(topic.readers for topic in self._topics.values())

    async def follow(self, name: str, until_s: float) -> AsyncIterator[bytes]:
        """Yields events until the reader leaves or the clock reaches `until_s`."""
        topic = self._topics.setdefault(name, _Topic())
        topic.readers += 1
        try:
            self._make(name, topic)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run())
            seen = 0
            while self._clock_s() < until_s:
                if topic.number != seen:
                    seen = topic.number
                    yield topic.data
                    continue  # a tick may have come, or the session have ended
                ticked, _ = await asyncio.wait([topic.fresh], timeout=KEEP_ALIVE_S)
                if not ticked:
                    yield _KEEP_ALIVE
        finally:
            topic.readers -= 1
            if not topic.readers:
                self._topics.pop(name, None)

    async def _run(self) -> None:
        while self._topics:
            await asyncio.sleep(TICK_S)
            for name, topic in list(self._topics.items()):
                self._make(name, topic)
                fresh, topic.fresh = topic.fresh, asyncio.get_running_loop().create_future()
                fresh.set_result(None)

    def _make(self, name: str, topic: _Topic) -> None:
        try:
            tick = self._look(name)
        except Exception:  # a bug in a figure must not stop the daemon's jobs
            log.exception("the figures of %s could not be made", f"job {name}" if name else "the list of jobs")
            return
        now_s = self._clock_s()
        if tick.changes != topic.changes and (tick.urgent or not topic.page or now_s - topic.page_s >= PAGE_S):
            # Unused by any daemon before, so a page that outlived a daemon requests the new page.
            topic.page = max(topic.page + 1, int(now_s * 1000))
            topic.changes, topic.page_s = tick.changes, now_s
        data = b"event: tick\ndata: " + msgspec.json.encode(_Sent(topic.page, tick.figures)) + b"\n\n"
        if data != topic.data:
            topic.data = data
            topic.number += 1


audit = logging.getLogger("coordinator.audit")

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_MAX_FORM_BYTES = 8 * 1024
_TARGET = re.compile(r"/(?:jobs/[a-z0-9-]{1,64}(?:/checkpoints(?:/[0-9]{1,19})?)?)?")
_NUMBER = re.compile(r"[0-9]{1,19}")
_RENDERED_S = 1.0  # share a rendered page for this long
_REASON_CHARACTERS = 600  # characters of a reason in a tick


@dataclass(frozen=True)
class PageSource:
    """The daemon's data for pages. `status` raises like REST; `known`: jobs that run here.

    `elsewhere` and `stored`: jobs that other daemons lead, and their stored status.
    """

    jobs: Callable[[], list[JobSummary]]
    elsewhere: Callable[[], Awaitable[list[JobSummary]]]
    status: Callable[[str, str | None], Awaitable[JobStatus]]
    stored: Callable[[Lease], Awaitable[JobStatus | None]]
    known: Callable[[str], JobStatus | None]
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
        return self._with_session(_html(render.opened_page(target)))

    def _refused(self, trouble: str, code: str, target: str, status: int = 401) -> Response:
        """Returns the login page; only holders of a link see the token's file in the command."""
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
        return self._with_session(RedirectResponse("/", 303, headers=HEADERS))

    async def log_out(self, request: Request) -> Response:
        answer = RedirectResponse("/login", 303, headers=HEADERS)
        answer.delete_cookie(self._sessions.cookie, path="/", httponly=True, samesite="strict")
        return answer

    def _with_session(self, answer: Response) -> Response:
        answer.set_cookie(
            self._sessions.cookie,
            self._sessions.begin(secrets.token_hex(16), now_ms()),
            max_age=SESSION_MS // 1000,
            path="/",
            httponly=True,
            samesite="strict",
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
        jobs = [*self._source.jobs(), *await self._source.elsewhere()]
        return _html(render.jobs_page(jobs, self._source.store.url))

    async def job(self, request: Request) -> Response:
        job, run = _job_and_run(request)
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
        return await report_of((await self._status(*_job_and_run(request)))[0])

    async def _facts(self, request: Request) -> JobFacts:
        return await asyncio.to_thread(self._explained, *await self._status(*_job_and_run(request)))

    async def _status(self, job: str, run: str | None) -> tuple[JobStatus, str, str]:
        """Returns the status; if another daemon leads, also why the page is read-only, and the address."""
        try:
            return await self._source.status(job, run), "", ""
        except LedElsewhere as error:
            stored = await self._source.stored(error.lease)
            if stored is None:  # the run has ended, or not begun
                raise
            why = f"this daemon stands by. What is shown is what daemon {error.lease.leader} has stored"
            return stored, why, error.url

    def _explained(self, status: JobStatus, read_only: str, leader: str) -> JobFacts:
        return render.explained(status, _time_of(status), self._command, read_only, leader)

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
            return PageTick({}, repr(self._source.jobs()), urgent=True)
        status = self._source.known(name)
        if status is None:
            return PageTick({}, "", urgent=True)
        figures = {key: render.inert(text[:_REASON_CHARACTERS]) for key, text in live(status, _time_of(status)).items()}
        last = status.checkpoints.history[-1] if status.checkpoints.history else None
        events = (status.phase, status.token, len(status.recoveries), len(status.failures), len(status.takeovers))
        changes = repr((events, last and last.checkpoint, status.records, status.commits))
        return PageTick(figures, changes, urgent=status.outcome is not None)


def pages_for(
    source: PageSource, token: Token, sessions: PageSessions, links: LoginLinks, url: str, token_file: str
) -> ASGIApp:
    """Returns the fully loaded application for `Pages.routes`. May be called in a thread."""
    render.load()
    pages = Pages(source, token, sessions, links, CommandLine(url, token_file))
    app = Starlette(routes=pages.routes(), exception_handlers={HTTPException: _on_http, BarrierRuntimeError: _on_error})
    app.router.redirect_slashes = False
    return app


async def report_of(status: JobStatus) -> Response:
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{status.job}-report.html"'}
    html = await asyncio.to_thread(lambda: render.report(render.explained(status, _time_of(status))))
    return Response(html, headers=headers, media_type="text/html")


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, headers=dict(HEADERS), media_type="text/html")


def _time_of(status: JobStatus) -> int:
    """Returns the present time by the status's clock; a stored status has none."""
    return status.at_ms or now_ms()


def _job_and_run(request: Request) -> tuple[str, str | None]:
    run = request.query_params.get("run")
    return check_job_id(request.path_params["job"]), None if run is None else check_job_id(run)


def _target(path: str) -> str:
    """Returns the target of a link: a page of this daemon, never another address."""
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
