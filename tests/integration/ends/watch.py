"""A thread that looks at the target all through the run, as users do, and has every look judged."""

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
_BLIND_S = 20.0  # time limit for a reader to recover the connection to a running server


class Watch:
    """Looks at a target until stopped. `error` is the exception that ended the thread early: a failing reader although
    the server runs.
    """

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
        """The thread's stack, and the reader's own description."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        does = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "it has ended"
        try:
            return f"{does}{getattr(self._look, '__self__', self._look)}"
        except Exception as error:  # the description queries a server
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
        except AssertionError:  # a reader's assertion is a verdict, even if the server is away
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
