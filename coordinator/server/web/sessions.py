"""Access to the page: the requests that are the page's, sessions in a cookie, links that log in once.

| request | goes to |
|---|---|
| `/login`, `/logout`, `/static/…` | the page, without a session: these answers contain nothing about jobs |
| a GET for HTML (or for a stream) without `Authorization` | the page; without a session: to `/login` |
| everything else | the REST interface, which checks token or session |

Keys made from the daemon's token sign sessions and links. Only the browser keeps a session, so a session is valid at
each daemon with the same token. A session cannot be revoked, but ends after twelve hours, or when the daemon's token
changes.

`use` records used links in the store by put-if-absent, so each link works once, whichever daemon is asked or was
killed. After an unknown outcome the link is refused, and may count as used. Only validly signed links reach `use`.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome

log = logging.getLogger("coordinator.page")

PREFIX = "_logins/"


def use(store: ObjectStore, mark: str, now_ms: int) -> bool:
    """Records the use of a link; False: used before. Blocks. Raises `Unavailable` if unclear."""
    try:
        outcome = store.put_if_absent(f"{PREFIX}{mark}", b"used")
    except OSError as error:
        raise Unavailable(f"the storage does not answer: {error}") from error
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable("the storage does not say whether this link was used")
    if outcome is PutOutcome.CREATED:
        _forget(store, now_ms)
    return outcome is PutOutcome.CREATED


def _forget(store: ObjectStore, now_ms: int) -> None:
    """Deletes records of links that expired over an hour ago: no daemon's clock is so late."""
    try:
        over = [info.key for info in store.list(PREFIX) if _ends_ms(info.key) + LINK_MS < now_ms]
        if over:
            store.delete(over)
    except (BarrierRuntimeError, OSError) as error:  # the next login tries again
        log.info("notes of old login links stay for now: %s", error)


def _ends_ms(key: str) -> int:
    ends = key.removeprefix(PREFIX).partition("-")[0]
    return int(ends) if ends.isdecimal() else 0


SESSION_MS = 12 * 3600 * 1000
LINK_MS = 3600 * 1000
FREE_ATTEMPTS = 5
_FIRST_DELAY_MS = 1_000
_LONGEST_DELAY_MS = 60_000
_FORGOTTEN_MS = 15 * 60 * 1000
_CLOCKS_APART_MS = 5 * 60 * 1000  # between daemons, or of a daemon whose clock was set back
_CLIENTS_KEPT = 1_000


class _Signed:
    def __init__(self, key: bytes, lasts_ms: int) -> None:
        self._key = key
        self._lasts_ms = lasts_ms

    def make(self, nonce: str, now_ms: int) -> str:
        """`nonce`: random, without a dot."""
        head = f"{now_ms + self._lasts_ms}.{nonce}"
        return f"{head}.{self._signature(head)}"

    def is_ours(self, value: str) -> bool:
        head, _, signature = value.rpartition(".")
        return hmac.compare_digest(self._signature(head).encode(), signature.encode("utf-8", "replace"))

    def ends_ms(self, value: str, now_ms: int) -> int | None:
        """Expiry time; None for a foreign, damaged or expired value."""
        if not self.is_ours(value):
            return None
        ends = int(value.partition(".")[0])  # a number, by the valid signature
        return ends if now_ms < ends <= now_ms + self._lasts_ms + _CLOCKS_APART_MS else None

    def _signature(self, head: str) -> str:
        return hmac.digest(self._key, head.encode("utf-8", "replace"), "sha256").hex()


class PageSessions:
    def __init__(self, token: bytes) -> None:
        key = hmac.digest(token, b"barrier-runtime page session", "sha256")
        self._signed = _Signed(key, SESSION_MS)
        # Browsers send cookies to every port of a host: each daemon's cookie needs another name.
        self.cookie = f"barrier-runtime-{hmac.digest(key, b'name', 'sha256').hex()[:8]}"

    def begin(self, nonce: str, now_ms: int) -> str:
        return self._signed.make(nonce, now_ms)

    def ends_ms(self, value: str, now_ms: int) -> int | None:
        return self._signed.ends_ms(value, now_ms)

    def of_cookies(self, header: str, now_ms: int) -> int | None:
        for each in header.split(";"):
            name, _, value = each.strip().partition("=")
            if name == self.cookie:
                return self.ends_ms(value, now_ms)
        return None


class LoginLinks:
    def __init__(self, token: bytes) -> None:
        self._signed = _Signed(hmac.digest(token, b"barrier-runtime login link", "sha256"), LINK_MS)

    def make(self, nonce: str, now_ms: int) -> str:
        return self._signed.make(nonce, now_ms)

    def is_ours(self, code: str) -> bool:
        """Returns whether a holder of the token made the code, perhaps long ago."""
        return self._signed.is_ours(code)

    def mark(self, code: str, now_ms: int) -> str | None:
        """Name of the record of use, beginning with the expiry time; None: invalid link."""
        ends = self._signed.ends_ms(code, now_ms)
        return None if ends is None else f"{ends}-{hashlib.sha256(code.encode()).hexdigest()[:32]}"


@dataclass
class _Wrong:
    count: int
    last_ms: int


class LoginThrottle:
    """Delays after wrong tokens, by client address.

    From the fifth wrong token on, each doubles the wait, up to a minute. A right token, which never waits, or a quarter
    of an hour without an attempt resets the delay.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()

    def wait_ms(self, client: str, now_ms: int) -> int:
        known = self._wrong.get(client)
        if known is None or known.count < FREE_ATTEMPTS:
            return 0
        delay = min(_LONGEST_DELAY_MS, _FIRST_DELAY_MS << min(known.count - FREE_ATTEMPTS, 10))
        # A clock that jumped back must not lock anybody out for longer than the delay.
        return max(0, delay - max(0, now_ms - known.last_ms))

    def wrong(self, client: str, now_ms: int) -> None:
        known = self._wrong.pop(client, None)
        if known is None or now_ms - known.last_ms > _FORGOTTEN_MS:
            known = _Wrong(0, now_ms)
        self._wrong[client] = _Wrong(known.count + 1, now_ms)
        while len(self._wrong) > _CLIENTS_KEPT:
            self._wrong.popitem(last=False)

    def right(self, client: str) -> None:
        self._wrong.pop(client, None)


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
