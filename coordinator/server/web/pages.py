"""The routes of the page: HTML for a browser that has logged in, beside the REST interface at the same address.

| request | answer |
|---|---|
| `GET /login?once=CODE` | a session, if the link is fresh and unused; a page that leads on |
| `POST /login` with a token | a session; 401 when wrong, 429 while the client has to wait |

Nothing here changes a job: buttons use the REST interface with the session's cookie and its header (`rest.Guard`).
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from barrier_runtime.coordinator.client.rest_token import Token, is_token
from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.log.lease_record import Lease
from barrier_runtime.coordinator.page import render
from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.page.render import CommandLine, JobFacts
from barrier_runtime.coordinator.server.leases import LedElsewhere
from barrier_runtime.coordinator.server.web.front import HEADERS, now_ms
from barrier_runtime.coordinator.server.web.sessions import SESSION_MS, LoginLinks, LoginThrottle, PageSessions
from barrier_runtime.coordinator.server.web.ticker import MAX_READERS, PageTick, Ticker
from barrier_runtime.coordinator.server.web.used_links import use
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectStore

audit = logging.getLogger("coordinator.audit")

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_MAX_FORM_BYTES = 8 * 1024
_TARGET = re.compile(r"/(?:jobs/[a-z0-9-]{1,64}(?:/checkpoints(?:/[0-9]{1,19})?)?)?")
_NUMBER = re.compile(r"[0-9]{1,19}")
_RENDERED_S = 1.0  # pages that ask within this time get the same one
_TOLD = 600  # characters of a reason in a tick


@dataclass(frozen=True)
class PageSource:
    """What pages ask the daemon for. `status` raises as the REST interface does; `known` is of a job that runs here.
    `elsewhere` and `stored`: jobs that other daemons lead, and what they have stored of one."""

    jobs: Callable[[], list[JobSummary]]
    elsewhere: Callable[[], Awaitable[list[JobSummary]]]
    status: Callable[[str, str | None], Awaitable[JobStatus]]
    stored: Callable[[Lease], Awaitable[JobStatus | None]]
    known: Callable[[str], JobStatus | None]
    store: ObjectStore  # of the jobs: its address is shown, and the use of login links is noted there


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

    # ------------------------------------------------------------ logging in

    async def login(self, request: Request) -> Response:
        code = request.query_params.get("once")
        if code is None or request.method == "HEAD":  # whatever looks ahead must not use the link up
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
        # A redirect would be part of the navigation that began elsewhere, to which a browser sends no strict cookie.
        return self._with_session(_html(render.opened_page(target)))

    def _refused(self, trouble: str, code: str, target: str, status: int = 401) -> Response:
        """With the command that prints another link. Where the token's file is, only who was given a link is told."""
        command = self._command if self._links.is_ours(code) else render.CommandLine()
        found = re.match(r"/jobs/([a-z0-9-]+)", target)
        return _html(render.login_page(trouble, line=command.line("page", found[1] if found else "JOB")), status)

    async def log_in(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _html(render.login_page("The form was sent from another site."), 403)
        client = request.client.host if request.client is not None else ""
        form = parse_qs((await _body(request)).decode("ascii", "replace"))
        if not is_token(form.get("token", [""])[0], self._token):  # others behind the same address must not lock it out
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

    # ------------------------------------------------------------ pages

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
        async with self._rendering:  # of many pages that ask at once, one makes what all get
            made_s, html = self._rendered.get(key, (0.0, ""))
            if not html or time.monotonic() - made_s > _RENDERED_S:
                # Beside the loop: a page of some milliseconds must not hold up a barrier.
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
        """And, where another daemon leads the job: why it can only be looked at, and that daemon's address."""
        try:
            return await self._source.status(job, run), "", ""
        except LedElsewhere as error:
            stored = await self._source.stored(error.lease)
            if stored is None:  # it has ended meanwhile, or has not begun
                raise
            why = f"this daemon stands by. What is shown is what daemon {error.lease.leader} has stored"
            return stored, why, error.url

    def _explained(self, status: JobStatus, read_only: str, leader: str) -> JobFacts:
        return render.explained(status, _time_of(status), self._command, read_only, leader)

    # ------------------------------------------------------------ the stream

    async def events(self, request: Request) -> Response:
        name = request.path_params.get("job", "")
        if name and self._source.known(check_job_id(name)) is None:
            return Response(status_code=204)  # nothing will change; a browser that gets this does not ask again
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
        figures = {key: render.inert(text[:_TOLD]) for key, text in live(status, _time_of(status)).items()}
        last = status.checkpoints.history[-1] if status.checkpoints.history else None
        events = (status.phase, status.token, len(status.recoveries), len(status.failures), len(status.takeovers))
        changes = repr((events, last and last.checkpoint, status.records, status.commits))
        return PageTick(figures, changes, urgent=status.outcome is not None)


def pages_for(
    source: PageSource, token: Token, sessions: PageSessions, links: LoginLinks, url: str, token_file: str
) -> ASGIApp:
    """The application that answers `Pages.routes`, ready to answer at once. May be called in a thread."""
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
    """Now, by the clock that its other times are of, which is never set. One that is read from the store has none."""
    return status.at_ms or now_ms()


def _job_and_run(request: Request) -> tuple[str, str | None]:
    run = request.query_params.get("run")
    return check_job_id(request.path_params["job"]), None if run is None else check_job_id(run)


def _target(path: str) -> str:
    """Where a link leads on to: a page of ours, never another address."""
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
