"""Headless Chromium for tests of the coordinator's page, from Debian's package: tests download nothing.

Without a browser, a test fails with the line that installs one. Every page that a test opens is watched: an error on
the console, a failed request, and a request to another host fail the test.
"""

import shutil
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.browser.living_job import LivingJob, living_job

REMEDY = "Chromium is missing: sudo apt-get install chromium (or: make servers)"
_PATIENCE_MS = 60_000  # for a machine that has much else to do; playwright's own is 5 s where something is expected
expect.set_options(timeout=_PATIENCE_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.fail(REMEDY)
    with sync_playwright() as playwright:
        # Chromium refuses to start the sandbox as root, and tests run as root in containers.
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


class Watched:
    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.expected: list[str] = []  # parts of troubles that the test brings about on purpose
        self.hosts: set[str] = set()

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: message.type == "error" and self.troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _failed(self, request: Request) -> None:
        # A page cancels open requests when a test leaves the page: these are no failures.
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"request: {request.url} {request.failure}")

    @property
    def unexpected(self) -> list[str]:
        return [trouble for trouble in self.troubles if not any(part in trouble for part in self.expected)]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Fails a test with unexpected errors, after the last step."""
    of_test = Watched()
    yield of_test
    assert of_test.unexpected == []
    assert len(of_test.hosts) <= 1, f"requests went to {sorted(of_test.hosts)}"


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes browser contexts, each with separate cookies; arguments as of `Browser.new_context`."""
    made: list[BrowserContext] = []

    def new(**settings: object) -> BrowserContext:
        made.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings}))
        made[-1].set_default_timeout(_PATIENCE_MS)
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingJob]:
    """A running job shared by all tests that leave the job unchanged."""
    with living_job(tmp_path_factory.mktemp("job")) as running:
        yield running


@pytest.fixture
def opened(context: Callable[..., BrowserContext], watched: Watched) -> Callable[..., Page]:
    """Opens the page of a job in a browser that has logged in by a link."""

    def open_page(job: LivingJob, path: str = "/jobs/flights", **settings: object) -> Page:
        page = context(**settings).new_page()
        watched.watch(page)
        page.goto(job.coordinator.client.page_link("flights"))
        page.wait_for_url(f"{job.coordinator.url}/jobs/flights")
        if path != "/jobs/flights":
            page.goto(f"{job.coordinator.url}{path}")
        return page

    return open_page
