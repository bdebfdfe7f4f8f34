"""A job in a notebook: figures that change by themselves, and a button that stops it. ipywidgets is optional."""

import contextlib
import html
import threading
from typing import Any, Protocol

from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import BarrierRuntimeError

_EVERY_S = 1.0
_FIGURES = (
    ("rows read", "records"),
    ("now", "rate"),
    ("checkpoints", "completed"),
    ("last took", "checkpoint_took"),
    ("processed, p99", "processed_p99"),
    ("visible, p99", "visible_p99"),
    ("state", "state"),
)


class Watched(Protocol):
    """A job's handle."""

    @property
    def done(self) -> bool: ...

    def status(self) -> JobStatus: ...

    def line(self) -> str: ...

    def stop(self) -> None: ...


def live_widget(handle: Watched) -> Any | None:
    """None where ipywidgets is not installed."""
    try:
        import ipywidgets
    except ImportError:
        return None
    shown = ipywidgets.HTML(value=_told(handle))
    stop = ipywidgets.Button(description="Stop", tooltip="take a last checkpoint, commit it and end the job")
    stop.on_click(lambda _: handle.stop())
    box = ipywidgets.HBox([shown, stop])
    over = threading.Event()

    def follow() -> None:
        while not over.wait(_EVERY_S):
            ended = handle.done
            shown.value = _told(handle)
            if ended:
                stop.disabled = True
                return

    threading.Thread(target=follow, name="barrier-widget", daemon=True).start()
    box.observe(lambda _: over.set(), "comm")  # the cell's output has gone
    return box


def _told(handle: Watched) -> str:
    with contextlib.suppress(BarrierRuntimeError):
        return table_of(handle.status())
    return f"<pre>{html.escape(handle.line())}</pre>"


def table_of(status: JobStatus) -> str:
    """HTML. `at_ms` is the coordinator's clock: of a job that has ended it is 0, and nothing has an age."""
    figures = live(status, status.at_ms)
    cells = "".join(
        f'<td style="padding:2px 14px 2px 0"><small>{name}</small><br><b>{html.escape(figures[key])}</b></td>'
        for name, key in _FIGURES
    )
    title = html.escape(f"{status.job}: {status.condition or status.phase}")
    reason = html.escape(status.condition_reason[:300])
    return f"<div><b>{title}</b> {reason}<table><tr>{cells}</tr></table></div>"
