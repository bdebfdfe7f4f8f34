"""Real threads that take turns line by line, in an order that a seed decides: races inside functions can be replayed.

Only one thread runs at a time. The stepper may stop the thread before any line of the traced files, and chooses the
next thread. Locks that the traced code makes are `Stepper.Lock`s, so that a thread waiting for a lock gives its turn
away.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace, TracebackType
from typing import Any

import pytest

_TURNS = 200_000  # without progress: a deadlock
_LONGEST_BURST = 200  # lines in one turn


class _Thread:
    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.body = body
        self.turn = threading.Semaphore(0)
        self.lines_left = 0
        self.waits = False
        self.ended = False
        self.error: BaseException | None = None


class Stepper:
    def __init__(self, seed: int, traced: Iterable[ModuleType]) -> None:
        self._random = random.Random(seed)
        self._files = {str(Path(module.__file__ or "")) for module in traced}
        self._threads: list[_Thread] = []
        self._back = threading.Semaphore(0)
        self._running: _Thread | None = None

    def run(self, **bodies: Callable[[], None]) -> None:
        """Runs all `bodies`, each on a separate thread, until every thread has ended. Raises the first error."""
        self._threads = [_Thread(name, body) for name, body in bodies.items()]
        started = [threading.Thread(target=self._live, args=(each,), name=each.name) for each in self._threads]
        for thread in started:
            thread.start()
        waited = 0
        while alive := [each for each in self._threads if not each.ended]:
            chosen = self._random.choice(alive)
            chosen.lines_left = 1 + int(_LONGEST_BURST ** self._random.random())
            chosen.waits = False
            self._running = chosen
            chosen.turn.release()
            self._back.acquire()
            waited = waited + 1 if chosen.waits else 0
            if waited > _TURNS:
                for each in alive:
                    each.error = each.error or TimeoutError(f"{each.name} waits for ever")
                    each.turn.release()
                break
        self._running = None
        for thread in started:
            thread.join()
        for each in self._threads:
            if each.error is not None:
                raise each.error

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Called by a body: gives the turn away until `condition` holds."""
        while not condition():
            self._give_way(waits=True)

    def Lock(self) -> "_Lock":
        return _Lock(self)

    def lock_of(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Makes `threading.Lock()` in these modules return locks that take part in turns."""
        for module in modules:
            monkeypatch.setattr(module, "threading", SimpleNamespace(Lock=self.Lock))

    # ---- inside

    def _live(self, thread: _Thread) -> None:
        thread.turn.acquire()
        sys.settrace(self._trace)
        try:
            thread.body()
        except BaseException as error:
            thread.error = error
        finally:
            sys.settrace(None)
            thread.ended = True
            self._back.release()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            thread = self._running
            assert thread is not None
            thread.lines_left -= 1
            if thread.lines_left <= 0:
                self._give_way(waits=False)
        return self._trace

    def _give_way(self, waits: bool) -> None:
        thread = self._running
        if thread is None:
            return  # outside of `run`: no other thread exists
        thread.waits = waits
        self._back.release()
        thread.turn.acquire()
        if thread.error is not None:
            raise thread.error


class _Lock:
    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._held = False

    def __enter__(self) -> None:
        self._stepper.wait_until(lambda: not self._held)
        self._held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
