"""Display of a run: progress lines, a notebook widget, rows as a table."""

import contextlib
import html
import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, TypeAlias

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.text import Text

from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.status.health import TROUBLED, described, what_died
from barrier_runtime.coordinator.status.statistics import late_rows
from barrier_runtime.coordinator.status.status import JobStatus, RecoveryStatus, TakeoverStatus
from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.state.texts import counted, shortened

log = logging.getLogger("barrier_runtime.job")

_LOG_AGAIN_S = 60.0
_HANGS_MS = 5_000  # a longer recovery is reported meanwhile
_LONGEST = 160
_LEAST_S = 0.5
_NAME = 12  # characters of a sink's name, on terminals of any width


class ConditionLog:
    def __init__(self) -> None:
        self._condition = ""
        self._logged_s = 0.0

    def log(self, status: JobStatus, now_s: float) -> None:
        due = status.condition != self._condition or now_s - self._logged_s >= _LOG_AGAIN_S
        if due and {status.condition, self._condition} & TROUBLED:
            self._logged_s = now_s
            log.warning("job %s: %s", status.job, described(status.condition, status.condition_reason))
        self._condition = status.condition


class Follower:
    """`happened` returns each line once."""

    def __init__(self) -> None:
        self._ran = False  # events before this program began are not news
        self._told: set[int] = set()
        self._hanging: set[int] = set()
        self._takeovers = 0
        self._differing: set[int] = set()  # slots with another build that were logged
        self._findings: set[str] = set()
        self._rate: float | None = None
        self._at: tuple[int, int] | None = None

    def happened(self, status: JobStatus) -> list[str]:
        lines = []
        if not self._ran:
            self._ran = status.phase == "running"
            self._takeovers = status.taken_over
            self._told = {each.token for each in status.recoveries}
        for recovery in status.recoveries:
            if recovery.token in self._told:
                continue
            line = self._recovery(status, recovery)
            if line:
                lines.append(f"job {status.job}: {line}")
        for slot in status.slots:
            if slot.differs and slot.slot not in self._differing:
                self._differing.add(slot.slot)
                lines.append(f"job {status.job}: {slot.differs}")
        for finding in status.preflight.findings:
            if finding.text not in self._findings:
                self._findings.add(finding.text)
                lines.append(f"job {status.job}: {finding.severity}: {finding.line}")
        new = status.taken_over - self._takeovers
        if new > 0:
            self._takeovers = status.taken_over
            lines += [f"job {status.job}: {_takeover(each)}" for each in status.takeovers[-new:]]
        return lines

    def _recovery(self, status: JobStatus, recovery: RecoveryStatus) -> str:
        if recovery.running_ms is not None:
            self._told.add(recovery.token)
            took_ms = recovery.running_ms - recovery.started_ms
            return f"{_short(what_died(recovery.reason))}; {_begins(status)}; back after {took_ms:,} ms"
        lasts_ms = status.at_ms - recovery.started_ms
        if lasts_ms < _HANGS_MS or recovery.token in self._hanging:
            return ""
        self._hanging.add(recovery.token)
        waits = f", waits for {_slots(status.missing_slots)}" if status.missing_slots else ""
        return f"{_short(what_died(recovery.reason))}; {_begins(status)}; not back after {lasts_ms / 1000:.0f} s{waits}"

    def lines(self, status: JobStatus, width: int | None = None) -> list[str]:
        """A line per sink; a single line until figures of a sink are known.

        Lines too long for `width` columns are shortened, the name of the sink last.
        """
        rate = self._rows_per_s(status)
        speed = "" if rate is None else f", {rate:,.0f}/s"
        late = sum(late_rows(status).values())
        dropped = f", {counted(late, 'late row')} dropped" if late else ""
        heads = [f"{counted(status.records, 'row')}{read}{speed}{dropped}" for read in (" read", "")]
        if status.phase != "running":
            why = f" ({_short(what_died(status.reason))})" if status.reason else ""
            heads = [f"{status.phase}{why}", status.phase]
        sinks = sorted({name for chain in status.chains for name in chain.sinks})
        if not sinks:
            return [f"{status.job}: {heads[0]}"]
        whole, brief = heads
        return [
            _fitting(sink, width, whole + _in_words(status, sink), brief + _in_brief(status, sink)) for sink in sinks
        ]

    def _rows_per_s(self, status: JobStatus) -> float | None:
        if self._at is None or status.records < self._at[1]:
            self._at, self._rate = (status.at_ms, status.records), None
        passed_s = (status.at_ms - self._at[0]) / 1000
        if passed_s >= _LEAST_S:
            self._rate = (status.records - self._at[1]) / passed_s
            self._at = status.at_ms, status.records
        return self._rate


def _takeover(takeover: TakeoverStatus) -> str:
    if not takeover.ended or takeover.away_ms is None:
        return "another coordinator process leads now; the slots went on"
    return f"the coordinator, {_short(takeover.ended)}; the slots went on; back after {takeover.away_ms:,} ms"


def _begins(status: JobStatus) -> str:
    if not status.restored_checkpoint:
        return "all slots begin again from the start"
    return f"all slots go on from checkpoint {status.restored_checkpoint}"


def _slots(missing: tuple[int, ...]) -> str:
    return f"slot{'s' if len(missing) > 1 else ''} " + ", ".join(map(str, missing[:8]))


def _fitting(sink: str, width: int | None, whole: str, brief: str) -> str:
    line = f"{sink}: {whole}"
    if width is None or len(line) <= width:
        return line
    room = max(_NAME, width - len(brief) - 2)
    return f"{shortened(sink, room)}: {brief}"


def _in_words(status: JobStatus, sink: str) -> str:
    upto, failing, latencies = _of_sink(status, sink)
    parts = [] if upto is None else [f"visible through checkpoint {upto}"]
    parts += [f"{kind} p99 {p99:,.0f} ms" for kind, p99 in latencies.items()]
    if failing:
        parts.append(f"its commit has failed {counted(failing, 'time')}")
    return "".join(f" · {part}" for part in parts)


def _in_brief(status: JobStatus, sink: str) -> str:
    upto, failing, latencies = _of_sink(status, sink)
    parts = [] if upto is None else [f"checkpoint {upto}"]
    if failing:
        parts.append(f"{counted(failing, 'failed commit')}")
    if latencies:
        parts.append(f"p99 {'/'.join(f'{p99:,.0f}' for p99 in latencies.values())} ms")
    return "".join(f" · {part}" for part in parts)


def _of_sink(status: JobStatus, sink: str) -> tuple[int | None, int, dict[str, float]]:
    """Checkpoint up to which rows are visible, failed commits, and p99 by kind in ms."""
    through = [upto for key, upto in status.commits.through.items() if key.rpartition("/")[0] == sink]
    told = {kind: status.latency_last_minute.get(f"{sink}:{kind}") for kind in ("processed", "visible")}
    troubles = [each for each in status.commits.troubles if each.sink.rpartition("/")[0] == sink]
    latencies = {kind: latency.p99 for kind, latency in told.items() if latency is not None and latency.count}
    return min(through, default=None), max((each.attempts for each in troubles), default=0), latencies


def _short(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else "the job was interrupted"
    return shortened(first, _LONGEST)


Show: TypeAlias = Callable[[JobStatus], None]

_PLAIN_S = 60.0  # between plain lines of a sink: stored output grows slowly


@contextmanager
def progress_shown(stream: TextIO | None = None, every_s: float = _PLAIN_S, *, plain: bool = False) -> Iterator[Show]:
    """Yields a function that shows a status: a line per sink.

    On a terminal lines are updated in place, elsewhere printed every `every_s`. `plain`: never in place.
    """
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
            text.no_wrap, text.overflow = True, "ellipsis"  # a line that wraps cannot be overwritten
            live.update(text, refresh=True)

        yield update


class _Plain:
    def __init__(self, follower: Follower, out: TextIO, every_s: float) -> None:
        self._follower = follower
        self._out = out
        self._every_s = every_s
        self._told_s = time.monotonic()  # a job that ends within `every_s` needs no line

    def __call__(self, status: JobStatus) -> None:
        lines = self._follower.happened(status)
        now_s = time.monotonic()
        progress = self._follower.lines(status)
        if now_s - self._told_s >= self._every_s:
            self._told_s = now_s
            lines += progress
        for line in lines:
            print(line, file=self._out, flush=True)


_WIDGET_EVERY_S = 1.0
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
    @property
    def done(self) -> bool: ...

    def status(self) -> JobStatus: ...

    def line(self) -> str: ...

    def stop(self, *, wait: bool = True) -> object: ...


def live_widget(handle: Watched) -> Any | None:
    try:
        import ipywidgets
    except ImportError:
        return None
    shown = ipywidgets.HTML(value=_widget_text(handle))
    stop = ipywidgets.Button(description="Stop", tooltip="take a last checkpoint, commit it and end the job")
    stop.on_click(lambda _: handle.stop(wait=False))
    box = ipywidgets.HBox([shown, stop])
    over = threading.Event()

    def follow() -> None:
        while not over.wait(_WIDGET_EVERY_S):
            ended = handle.done
            shown.value = _widget_text(handle)
            if ended:
                stop.disabled = True
                return

    threading.Thread(target=follow, name="barrier-widget", daemon=True).start()
    box.observe(lambda _: over.set(), "comm")  # the cell's output has been removed
    return box


def _widget_text(handle: Watched) -> str:
    with contextlib.suppress(BarrierRuntimeError):
        return table_of(handle.status())
    return f"<pre>{html.escape(handle.line())}</pre>"


def table_of(status: JobStatus) -> str:
    """HTML table; figures of an ended job (`at_ms` is 0) have no age."""
    figures = live(status, status.at_ms)
    cells = "".join(
        f'<td style="padding:2px 14px 2px 0"><small>{name}</small><br><b>{html.escape(figures[key])}</b></td>'
        for name, key in _FIGURES
    )
    title = html.escape(f"{status.job}: {status.condition or status.phase}")
    reason = html.escape(status.condition_reason[:300])
    return f"<div><b>{title}</b> {reason}<table><tr>{cells}</tr></table></div>"


class Rows:
    """Result of `Stream.preview`: a `table`, which notebooks show."""

    def __init__(self, table: pa.Table, wanted: int) -> None:
        self.table = table
        self._wanted = wanted

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def __repr__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        # In a notebook rich would write to the cell's output instead.
        Console(file=out, width=160, force_jupyter=False, force_terminal=False).print(rich_table(self.table))
        return f"{out.getvalue()}{self._note}"

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th style="text-align:left">{html.escape(field.name)}<br>'
            f"<small>{html.escape(str(field.type))}</small></th>"
            for field in self.table.schema
        )
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{html.escape(text)}</td>' for text in _texts(row)) + "</tr>"
            for row in self.table.to_pylist()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><small>{self._note}</small>"

    @property
    def _note(self) -> str:
        fewer = "" if len(self) >= self._wanted else ": the stream has no more, or none came in time"
        return f"{counted(len(self), 'row')}{fewer}"


def rich_table(table: pa.Table) -> Any:
    from rich.markup import escape
    from rich.table import Table

    shown = Table()
    for field in table.schema:
        shown.add_column(escape(f"{field.name}\n{field.type}"), overflow="fold")
    for row in table.to_pylist():
        shown.add_row(*map(escape, _texts(row)))
    return shown


def _texts(row: dict[str, Any]) -> list[str]:
    return ["" if value is None else str(value) for value in row.values()]
