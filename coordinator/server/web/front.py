"""Routes each request at the daemon's address to the page or to the REST interface.

| request | goes to |
|---|---|
| `/login`, `/logout`, `/static/…` | the page, without a session: these answers contain nothing about jobs |
| a GET for HTML (or for a stream) without `Authorization` | the page; without a session: to `/login` |
| everything else | the REST interface, which checks token or session |
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from barrier_runtime.coordinator.server.web.sessions import PageSessions

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept, Cookie",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PagesOrRest:
    def __init__(self, make_pages: Callable[[], ASGIApp], rest: ASGIApp, sessions: PageSessions) -> None:
        self._make_pages = make_pages
        self._pages: ASGIApp | None = None
        self._making = asyncio.Lock()
        self._rest = rest
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_for_pages(scope):
            await self._rest(scope, receive, send)
            return
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        cookies = headers.get(b"cookie", b"").decode("latin-1")
        if is_open(scope["path"]) or self._sessions.of_cookies(cookies, now_ms()) is not None:
            await (await self._loaded())(scope, receive, send)
        elif scope["path"].endswith("/events"):
            await Response("log in first", 401, headers=HEADERS)(scope, receive, send)
        else:
            await RedirectResponse("/login", 303, headers=HEADERS)(scope, receive, send)

    async def _loaded(self) -> ASGIApp:
        async with self._making:
            if self._pages is None:
                self._pages = await asyncio.to_thread(self._make_pages)
            return self._pages


def is_for_pages(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    path: str = scope["path"]
    if is_open(path):
        return True
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    wanted = b"text/event-stream" if path.endswith("/events") else b"text/html"
    return (
        scope["method"] in ("GET", "HEAD") and b"authorization" not in headers and wanted in headers.get(b"accept", b"")
    )


def is_open(path: str) -> bool:
    return path in ("/login", "/logout") or path.startswith("/static/")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
