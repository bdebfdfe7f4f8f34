"""`barrier-runtime top`: a job's status as tables, again and again, on a terminal.

While the coordinator is away that is said, and what was seen last stays. Where the window is low, fewer checkpoints are
shown; what does not fit even so is cut off at the end, where the least important is.
"""

import time
from collections.abc import Callable
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.tools.views import CHECKPOINTS, job_view, plain


def watch(
    ask: Callable[[], JobStatus],
    every_s: float,
    *,
    once: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until the job ended or Ctrl-C. Raises what the first `ask` raises; later ones may fail for a while."""
    console = console or Console(highlight=False)
    status = ask()
    if once or not console.is_terminal:
        console.print(job_view(status))
        return
    try:
        with Live(_screen(status, "", console), console=console, screen=True, auto_refresh=False) as live:
            while status.outcome is None:
                sleep(every_s)
                trouble = ""
                try:
                    status = ask()
                except Unavailable as error:
                    trouble = str(error)
                live.update(_screen(status, trouble, console), refresh=True)
    except KeyboardInterrupt:
        return
    console.print(job_view(status))  # how it ended stays to be read


def _screen(status: JobStatus, trouble: str, console: Console) -> RenderableType:
    now = f"{datetime.now():%H:%M:%S}, Ctrl-C leaves"
    line = Text(f"{now}; {plain(trouble)}", style="bold red") if trouble else Text(now)
    shown: RenderableType = line
    for checkpoints in range(CHECKPOINTS, 0, -1):
        shown = Group(line, job_view(status, checkpoints))
        if len(console.render_lines(shown, pad=False)) <= console.height:
            break
    return shown
