"""Progress of `make run`: a live panel on a terminal, else a line per second."""

import contextlib
import datetime
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from barrier_runtime.coordinator.status.status import JobStatus


class Display(Protocol):
    def update(self, status: JobStatus) -> None: ...

    def say(self, line: str) -> None:
        """Prints an event that stays on the screen."""
        ...


@contextlib.contextmanager
def display(total_records: int) -> Iterator[Display]:
    console = Console(highlight=False)
    if not console.is_terminal:
        yield _Lines(total_records)
        return
    panel = _Panel(console, total_records)
    with Live(panel.drawn(), console=console, refresh_per_second=8) as live:
        panel.live = live
        yield panel


class _Rate:
    """Records per second over the last polls of the status.

    Measuring starts again after a rollback of the job or a restart of the coordinator."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, records: int) -> float:
        if self._seen and records < self._seen[-1][1]:
            self._seen = []
        self._seen = [*self._seen[-20:], (time.monotonic(), records)]
        (then, before), (now, after) = self._seen[0], self._seen[-1]
        return max(0.0, (after - before) / (now - then)) if now > then else 0.0


def facts(status: JobStatus, rate: float) -> list[tuple[str, str]]:
    """Name and value of everything shown."""
    last = status.checkpoints.last_completed
    shown = [
        ("phase", f"{status.phase}, generation {status.token}"),
        ("records", f"{status.records:,} ({rate:,.0f}/s)"),
        ("watermark", _day(status.watermark_ms)),
        (
            "checkpoint",
            f"{last.checkpoint}: {last.duration_ms} ms, {last.new_bytes:,} bytes new of {last.full_bytes:,}"
            if last
            else "none yet",
        ),
    ]
    for name, latency in sorted(status.latency.items()):
        shown.append((name, f"p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms, max {latency.max:.1f} ms"))
    shown += [("commit failing", f"{t.sink}: {t.error}") for t in status.commits.troubles]
    return shown


def _day(watermark_ms: int | None) -> str:
    if watermark_ms is None or not 0 < watermark_ms < 4_102_444_800_000:  # before the first row, or after the last
        return "-"
    return datetime.datetime.fromtimestamp(watermark_ms / 1000, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")


class _Lines:
    def __init__(self, total_records: int) -> None:
        self._total = total_records
        self._rate = _Rate()
        self._next = 0.0

    def update(self, status: JobStatus) -> None:
        rate = self._rate.of(status.records)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 1.0
        last = status.checkpoints.last_completed
        parts = [
            f"{100 * status.records / self._total:5.1f} %",
            f"{rate:,.0f} records/s",
            f"watermark {_day(status.watermark_ms)}",
            f"checkpoint {last.checkpoint}: {last.duration_ms} ms, {last.new_bytes:,} bytes"
            if last
            else "no checkpoint yet",
            *(f"{name} p50 {each.p50:.1f} p99 {each.p99:.1f} ms" for name, each in sorted(status.latency.items())),
        ]
        if status.phase != "running":
            parts.append(f"{status.phase}: {status.reason}")
        parts += [f"commit of {trouble.sink} fails: {trouble.error}" for trouble in status.commits.troubles]
        print(" | ".join(parts), flush=True)

    def say(self, line: str) -> None:
        print(f"  !! {line}", flush=True)


class _Panel:
    def __init__(self, console: Console, total_records: int) -> None:
        self.live: Live | None = None
        self._console = console
        self._rate = _Rate()
        self._bar = Progress(TextColumn("flights"), BarColumn(60), TextColumn("{task.percentage:.0f} %"))
        self._task = self._bar.add_task("flights", total=total_records)
        self._facts: list[tuple[str, str]] = []

    def update(self, status: JobStatus) -> None:
        self._facts = facts(status, self._rate.of(status.records))
        self._bar.update(self._task, completed=status.records)
        if self.live is not None:
            self.live.update(self.drawn())

    def say(self, line: str) -> None:
        self._console.print(f"[bold yellow]!![/] {line}")

    def drawn(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, value in self._facts:
            table.add_row(f"[dim]{name}[/]", value)
        whole = Table.grid()
        whole.add_row(self._bar)
        whole.add_row(table)
        return whole
