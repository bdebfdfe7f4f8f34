"""Logins at the page: sessions in a cookie, links that log in once, and a delay after wrong tokens.

Keys made from the daemon's token sign sessions and links. Only the browser keeps a session, so a session is valid at
each daemon with the same token. A session cannot be revoked, but ends after twelve hours, or when the daemon's token
changes.

`use` records used links in the store by put-if-absent, so each link works once, whichever daemon is asked or was
killed. After an unknown outcome the link is refused, and may count as used. Only validly signed links reach `use`.
"""

import hashlib
import hmac
import logging
from collections import OrderedDict
from dataclasses import dataclass

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
