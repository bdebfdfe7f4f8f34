"""`make pictures`: takes pictures of the coordinator's page for the documents, into docs/images.

The job of `make run` runs on Spark, and a slot and the coordinator are killed. Debian's Chromium shows the page of the
job, the page of the slowest checkpoint, `top` on a terminal, and the report after the job's end, light and dark, 1280
and 390 pixels wide.
"""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow.dataset
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.tools.views import job_view
from examples.flight_delays import build
from examples.flights_data import prepare
from examples.run_observer import Observer
from examples.run_progress import display

PICTURES = Path("docs/images")
_PLACE = Path("build/pictures")
_SECONDS = 60.0  # of replay: long enough for the pictures
_PATIENCE_S = 300.0
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_WINDOWS = ((1280, 1800), (390, 1500))


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("Chromium is missing: sudo apt-get install chromium (or: make servers)", file=sys.stderr)
        return 1
    shutil.rmtree(_PLACE, ignore_errors=True)
    flights = prepare(Path("build/data"))
    records = pyarrow.dataset.dataset(flights, format="parquet").count_rows()
    flow = build(flights, str(_PLACE.resolve() / "output"), rows_per_second=records / _SECONDS)
    with (
        flow.start(
            master="local[4,16]",
            parallelism=2,
            checkpoints=str(_PLACE.resolve() / "checkpoints"),
            checkpoint_interval=0.5,
        ) as handle,
        display(records) as show,
    ):
        observer = Observer(handle, show)
        observer.until("tenth of the records", _read(records / 10), _PATIENCE_S)
        observer.kill_slot()
        observer.until("fifth of the records", _read(records / 5), _PATIENCE_S)
        observer.kill_coordinator()
        observer.until("third of the records", _read(records / 3), _PATIENCE_S)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            _take(browser, handle)
            _take_top(browser, handle)
            handle.stop("checkpoint")
            observer.until("end", lambda status: status.outcome is not None, _PATIENCE_S)
            _take_report(browser, handle.report())
            browser.close()
    return 0


def _read(records: float) -> Callable[[JobStatus], bool]:
    return lambda status: status.records >= records


def _take(browser: Browser, handle: JobHandle) -> None:
    for scheme in _SCHEMES:
        for width, height in _WINDOWS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            link = handle.page_link()
            page.goto(link)
            page.wait_for_url(link.partition("/login")[0] + "/jobs/*")
            page.wait_for_selector("svg.strip")
            page.screenshot(path=PICTURES / f"page-{scheme}-{width}.png")
            page.goto(f"{page.url}/checkpoints/{_slowest(handle.status())}")
            page.screenshot(path=PICTURES / f"checkpoint-{scheme}-{width}.png")
            context.close()


def _take_top(browser: Browser, handle: JobHandle) -> None:
    """Takes pictures of `barrier-runtime top` on dark and light terminals, wide and narrow."""
    status = handle.status()
    for scheme, theme in (("light", DEFAULT_TERMINAL_THEME), ("dark", DIMMED_MONOKAI)):
        for width, columns in ((1280, 150), (390, 48)):
            console = Console(record=True, width=columns, file=io.StringIO(), highlight=False)
            console.print(job_view(status))
            drawing = console.export_svg(title="barrier-runtime top flight-delays", theme=theme)
            context = browser.new_context(viewport={"width": width, "height": 800})
            page = context.new_page()
            page.set_content(f'<body style="margin:0"><div style="width:{width}px">{drawing}</div></body>')
            page.locator("svg").first.screenshot(path=PICTURES / f"top-{scheme}-{width}.png")
            context.close()


def _take_report(browser: Browser, report: bytes) -> None:
    file = _PLACE.resolve() / "report.html"
    file.write_bytes(report)
    for scheme in _SCHEMES:
        for width, height in _WINDOWS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(file.as_uri())
            page.screenshot(path=PICTURES / f"report-{scheme}-{width}.png")
            context.close()


def _slowest(status: JobStatus) -> int:
    return max(status.checkpoints.history, key=lambda each: each.duration_ms).checkpoint


if __name__ == "__main__":
    sys.exit(main())
