"""Check of every request before any route: signature, token or session; header; kind and size of body.

After `FREE_ATTEMPTS` wrong tokens of a client, answers to wrong tokens wait. Right tokens never wait, so nobody behind
the same address can lock out the owner.
"""

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from barrier_runtime.coordinator.client.rest_token import (
    SCHEME,
    SIGNED_HEADERS,
    WINDOW_MS,
    Call,
    Signatures,
    Token,
    nonce_of,
)
from barrier_runtime.coordinator.client.rest_types import ErrorReply
from barrier_runtime.coordinator.server.web.sessions import LoginThrottle, PageSessions, now_ms
from barrier_runtime.coordinator.wire.handshake import LineLimit
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.hosts import network_of

log = logging.getLogger("coordinator.rest")
audit = logging.getLogger("coordinator.audit")

SLOTS = re.compile("/jobs/[^/]+/slots/")  # logs may quote rows, so reading is audited too
MAX_BODY_BYTES = 1024 * 1024
GUARD_HEADER = "x-barrier-runtime"
OPEN_PATHS = frozenset({"/healthz"})
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
LONGEST_PAUSE_MS = 2_000
MOST_PAUSES = 32  # at a time: further answers do not wait, so connections stay free
CALLER = "barrier_runtime.caller"  # key of the `Caller` in the scope that routes get

_WRONG_TOKEN = "this is not the daemon's token: use the token file that the daemon was started with"
_REFUSALS = {
    "not understood": (401, f"the signature is not understood: send Authorization: {SCHEME} <time ms>:<nonce>:<MAC>"),
    "another time": (
        503,  # a client that knows the token tries again: a job must not end because of a clock
        f"the call was signed more than {WINDOW_MS // 60_000} minutes before or after the daemon's time: set the "
        "clocks of both hosts",
    ),
    "repeated": (503, "this call was made before: sign each call with a new nonce"),
    "wrong": (401, _WRONG_TOKEN),
}


@dataclass(frozen=True)
class Caller:
    """`holds_token`: false for a session. `nonce`: of the signature, or empty."""

    holds_token: bool
    nonce: str = ""


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        token: Token,
        signatures: Signatures,
        sessions: PageSessions | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._token = token
        self._signatures = signatures
        self._sessions = sessions
        self._pause = pause
        self._pauses = 0
        self._throttle = LoginThrottle()
        self._lines = LineLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # only HTTP is offered, so nothing else may bypass the token
            raise InvalidJob(f"a {scope['type']} connection came to an interface that speaks HTTP only: use HTTP")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        signed = headers.get(b"authorization", b"").startswith(SCHEME.encode()) and scope["path"] not in OPEN_PATHS
        refusal = _why_ambiguous(scope) or (None if signed else self._why_unknown(scope, headers))
        refusal = refusal or _why_unfit(scope, headers)
        if signed and refusal is None:
            receive, body = await _read_ahead(receive)
            refusal = self._why_unsigned(scope, headers, body)
        if refusal is not None:
            if refusal.status_code == 401 and b"authorization" in headers:
                await self._slow_down(scope)
            await refusal(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD") or SLOTS.match(scope["path"]):
            # Logged as sent: a decoded path could contain line ends and forge log lines.
            path = scope["raw_path"].decode("ascii", "replace")
            audit.info("token %s: %s %s", self._token.name, scope["method"], path)
        await self._app({**scope, CALLER: _caller(scope, headers)}, receive, send)

    async def _slow_down(self, scope: Scope) -> None:
        host = (scope.get("client") or ("an unknown address",))[0]
        client, now = network_of(host), now_ms()
        self._throttle.wrong(client, now)
        left_out = self._lines.left_out_before(asyncio.get_running_loop().time())
        if left_out is not None:
            more = f" (and {left_out} more such calls before)" if left_out else ""
            log.warning("call from %s refused: it has another token than this daemon%s", host, more)
        wait_ms = min(self._throttle.wait_ms(client, now), LONGEST_PAUSE_MS)
        if wait_ms and self._pauses < MOST_PAUSES:
            self._pauses += 1
            try:
                await self._pause(wait_ms / 1000)
            finally:
                self._pauses -= 1

    def _why_unknown(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        given = headers.get(b"authorization", b"")
        if scope["path"] in OPEN_PATHS or hmac.compare_digest(given, b"Bearer " + self._token.value):
            return None
        if not given and self._has_session(headers):
            return None
        none = "a bearer token is required: send Authorization: Bearer <token>"
        return _refused(_WRONG_TOKEN if given else none, 401)

    def _why_unsigned(self, scope: Scope, headers: dict[bytes, bytes], body: bytes) -> Response | None:
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        given = headers[b"authorization"].decode("latin-1")
        covered = tuple(headers.get(name.lower().encode(), b"") for name in SIGNED_HEADERS)
        verdict = self._signatures.verdict(given, Call(scope["method"], target, body, covered), now_ms())
        if not verdict:
            return None
        status, why = _REFUSALS[verdict]
        return _refused(why, status)

    def _has_session(self, headers: dict[bytes, bytes]) -> bool:
        cookies = headers.get(b"cookie", b"").decode("latin-1")
        return self._sessions is not None and self._sessions.of_cookies(cookies, now_ms()) is not None


def _caller(scope: Scope, headers: dict[bytes, bytes]) -> Caller:
    """An empty `Authorization` proves nothing."""
    given = headers.get(b"authorization", b"").decode("latin-1")
    return Caller(False) if scope["path"] in OPEN_PATHS or not given else Caller(True, nonce_of(given))


def _why_ambiguous(scope: Scope) -> Response | None:
    """Refuses repeated headers: the check and a route could use different headers."""
    names = [name for name, _ in scope["headers"]]
    for name in ("Authorization", *SIGNED_HEADERS):
        if names.count(name.lower().encode()) > 1:
            return _refused(f"a call may have one {name} header: leave the others out", 400)
    return None


def _why_unfit(scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
    if scope["path"] in OPEN_PATHS:
        return None
    if scope["method"] not in ("GET", "HEAD") and headers.get(GUARD_HEADER.encode()) != b"1":
        return _refused("state-changing requests need the header X-Barrier-Runtime: 1", 403)
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 20 or int(length) > MAX_BODY_BYTES:
        return _refused(f"the body may have at most {MAX_BODY_BYTES} bytes", 413)
    kind = headers.get(b"content-type")
    if kind is not None and kind.partition(b";")[0].strip().lower() != b"application/json":
        return _refused("only JSON is understood: send Content-Type: application/json", 415)
    return None


async def _read_ahead(receive: Receive) -> tuple[Receive, bytes]:
    """The returned `receive` gives the body again.

    A body without a length may exceed the bound; the bytes read so far match no signature then.
    """
    body = bytearray()
    more = True
    while more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
    again: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_again() -> Message:
        return again.pop() if again else await receive()

    return receive_again, bytes(body)


def _refused(why: str, status: int) -> Response:
    return Response(msgspec.json.encode(ErrorReply(why)), status, headers=dict(HEADERS), media_type="application/json")
