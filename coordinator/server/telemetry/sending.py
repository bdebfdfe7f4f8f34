"""Thread that sends data to a collector, and pauses during outages. No job waits for the thread.

After a refusal or a timeout the data are dropped, and the thread pauses for 2, 4, … 60 s. After each pause the thread
connects (an exporter would try eight times), then sends an empty request, until accepted. Meanwhile `ready` is False:
unwanted data are not made.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

log = logging.getLogger("coordinator.tracing")

CLOSE_S = 1.0
_FIRST_REST_S = 2.0
_LONGEST_REST_S = 60.0
_CONNECT_S = 5.0
_END = object()


class Exporter(Protocol):
    def export(self, data: Any, /) -> Any: ...

    def shutdown(self) -> Any: ...


def rest_s(failures: int) -> float:
    return min(_LONGEST_REST_S, _FIRST_REST_S * 2.0 ** min(failures - 1, 16))


def endpoint_of(variables: Sequence[str]) -> str:
    """Returns "" if unset. `variables`: the most general first."""
    return next((os.environ[name] for name in reversed(variables) if os.environ.get(name)), "")


def reachable(url: str) -> bool:
    """Also True if only a proxy could answer."""
    place = urlsplit(url)
    if place.hostname is None or (place.scheme in getproxies() and not proxy_bypass(place.hostname)):
        return True
    try:
        socket.create_connection(
            (place.hostname, place.port or {"http": 80}.get(place.scheme, 443)), _CONNECT_S
        ).close()
    except OSError:
        return False
    return True


class Sending:
    def __init__(
        self,
        what: str,
        exporter: Exporter,
        empty: Any,
        rest: Callable[[int], float] = rest_s,
        there: Callable[[], bool] = lambda: True,
    ) -> None:
        """`there`: whether attempts make sense."""
        self._what = what
        self._empty = empty
        self._exporter = exporter
        self._rest = rest
        self._there = there
        self._waiting: queue.Queue[Any] = queue.Queue(1)
        self._resting = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=f"barrier-otel-{what}", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        return not (self._resting or self._closing.is_set() or self._waiting.full())

    def offer(self, data: Any) -> bool:
        if self.ready:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(data)
                return True
        return False

    def _send_all(self) -> None:
        while (data := self._waiting.get()) is not _END:
            trouble = self._trouble(data)
            if trouble:
                log.warning("%s could not be sent: %s; none are until the collector answers", self._what, trouble)
                self._resting = True
                self._until_it_answers()
                self._resting = False

    def _until_it_answers(self) -> None:
        failures = 1
        while not self._closing.wait(self._rest(failures)):
            if self._there() and not self._trouble(self._empty):
                log.info("the collector takes %s again", self._what)
                return
            failures += 1

    def _trouble(self, data: Any) -> str:
        try:
            result = self._exporter.export(data)
        except Exception as error:  # errors of the library, of many types
            return f"{type(error).__name__}: {error}"
        return "the collector refused them or is away" if getattr(result, "name", "") == "FAILURE" else ""

    def close(self) -> None:
        """Blocks for `CLOSE_S` at most, then drops unsent data."""
        until_s = time.monotonic() + CLOSE_S
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put(_END, timeout=CLOSE_S)
            self._thread.join(max(0.0, until_s - time.monotonic()))
        self._exporter.shutdown()  # cancels an attempt that waits for a retry
        with contextlib.suppress(queue.Full):
            self._drop()
            self._waiting.put_nowait(_END)

    def _drop(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
