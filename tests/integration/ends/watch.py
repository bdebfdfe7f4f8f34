"""A thread that looks at the target all through the run, as its users do, and has every look judged."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from examples.servers import Server
from tests.integration.ends.audit import Audit
from tests.integration.ends.several import InTurn

_POLL_S = 0.2
_BLIND_S = 20.0  # how long a reader may take to find its way back to a server that runs


class Watch:
    """`error` is what ended it before its time: a reader that cannot look although its server runs."""

    def __init__(self, look: Callable[[], Any], audit: Audit, server: Server | InTurn) -> None:
        self._look = look
        self._audit = audit
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._sighted = time.monotonic()
        self.looks = 0
        self.blind = 0  # looks that failed
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def where(self) -> str:
        """What its thread does just now, and what the reader tells of itself."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        does = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "it has ended"
        try:
            return f"{does}{getattr(self._look, '__self__', self._look)}"
        except Exception as error:  # it asks a server
            return f"{does}{error!r}"

    def _run(self) -> None:
        try:
            while not self._stop.wait(_POLL_S):
                self._once()
        except BaseException as error:
            self.error = error

    def _once(self) -> None:
        try:
            seen = self._look()
        except AssertionError:  # what a reader asserts is wrong, whatever the server does
            raise
        except Exception:
            self.blind += 1
            if not self._server.running:
                self._sighted = time.monotonic()
            if time.monotonic() - self._sighted > _BLIND_S:
                raise
            return
        self._sighted = time.monotonic()
        self.looks += 1
        self._audit.observe(f"look {self.looks}", seen)
