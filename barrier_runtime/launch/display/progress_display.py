"""Progress on standard error: one updating line per sink on a terminal, elsewhere a plain line per sink and minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.display.progress import Follower

Show: TypeAlias = Callable[[JobStatus], None]

_PLAIN_S = 60.0  # between two plain lines of a sink; output that is kept must not grow by the second


@contextmanager
def shown(stream: TextIO | None = None, every_s: float = _PLAIN_S, *, plain: bool = False) -> Iterator[Show]:
    """What is to be called with each status. `stream`: standard error, unless it is given. `plain`: nothing is written
    over, because other processes write to this terminal, too."""
    out = sys.stderr if stream is None else stream
    if out is None:  # a program without a console
        yield lambda status: None
        return
    console = Console(file=out, highlight=False)
    follower = Follower()
    if plain or not console.is_terminal:
        yield _Plain(follower, out, every_s)
        return
    with Live(Text(), console=console, transient=True, auto_refresh=False) as live:

        def update(status: JobStatus) -> None:
            for line in follower.happened(status):
                live.console.print(line, markup=False, soft_wrap=True)
            text = Text("\n").join(Text(line) for line in follower.lines(status, console.width))
            text.no_wrap, text.overflow = True, "ellipsis"  # a line that wraps could not be written over
            live.update(text, refresh=True)

        yield update


class _Plain:
    def __init__(self, follower: Follower, out: TextIO, every_s: float) -> None:
        self._follower = follower
        self._out = out
        self._every_s = every_s
        self._told_s = time.monotonic()  # a job that ends within the time needs no line: its result is printed

    def __call__(self, status: JobStatus) -> None:
        lines = self._follower.happened(status)
        now_s = time.monotonic()
        progress = self._follower.lines(status)  # each time: it measures rates
        if now_s - self._told_s >= self._every_s:
            self._told_s = now_s
            lines += progress
        for line in lines:
            print(line, file=self._out, flush=True)
