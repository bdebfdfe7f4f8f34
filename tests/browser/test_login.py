"""Access to the page, in a real browser: token, one-time link, delay, cookie, log out."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.conftest import Watched
from tests.browser.living_job import LivingJob

NewContext = Callable[..., BrowserContext]
Opened = Callable[..., Page]


def token_of(job: LivingJob) -> str:
    return (job.coordinator._directory / "driver.token").read_text()


def log_in(page: Page, token: str) -> None:
    """Returns when the answer is loaded: the page of jobs, or the login page again."""
    page.fill("#token", token)
    with page.expect_navigation():
        page.click("button[type=submit]")


def test_without_a_session_there_is_only_the_login_page(job: LivingJob, context: NewContext, watched: Watched) -> None:
    """G2."""
    page = context().new_page()
    watched.watch(page)
    for path in (
        "/",
        "/jobs/flights",
        "/jobs/flights/checkpoints",
        "/jobs/flights/checkpoints/1",
        "/jobs/flights/report",
    ):
        page.goto(f"{job.coordinator.url}{path}")
        assert page.url.endswith("/login")
        assert "flights" not in page.content()


def test_a_token_opens_the_jobs_and_a_wrong_one_does_not(job: LivingJob, context: NewContext, watched: Watched) -> None:
    """G2: the token is in no URL, and the cookie is for requests of the page itself only."""
    watched.expected = ["401"]
    new = context()
    page = new.new_page()
    watched.watch(page)
    page.goto(f"{job.coordinator.url}/login")
    log_in(page, "x" * 64)
    assert "not the token of this coordinator" in page.inner_text("[role=alert]")
    log_in(page, token_of(job))
    assert page.url == f"{job.coordinator.url}/"
    assert page.inner_text("tbody a") == "flights"
    (cookie,) = new.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert token_of(job) not in cookie["value"]
    assert page.evaluate("document.cookie") == ""


def test_a_link_logs_in_once(job: LivingJob, context: NewContext, watched: Watched) -> None:
    """G2: a link found later, in a log or a history, is already used."""
    watched.expected = ["401"]
    link = job.coordinator.client.page_link("flights")
    page = context().new_page()
    watched.watch(page)
    page.goto(link)
    page.wait_for_url(f"{job.coordinator.url}/jobs/flights")
    assert page.inner_text("h1 bdi") == "flights"
    other = context().new_page()
    other.goto(link)
    assert "used already" in other.inner_text("[role=alert]")
    assert other.context.cookies() == []


@pytest.mark.parametrize("target", ["//example.org", "https://example.org", "/jobs/../x", "javascript:alert(1)"])
def test_a_link_leads_to_no_other_address(job: LivingJob, context: NewContext, watched: Watched, target: str) -> None:
    link = job.coordinator.client.page_link("flights").partition("&to=")[0]
    page = context().new_page()
    watched.watch(page)
    page.goto(f"{link}&to={target}")
    page.wait_for_url(f"{job.coordinator.url}/")


def test_after_five_wrong_tokens_there_is_a_delay(tmp_path_factory, context: NewContext, watched: Watched) -> None:
    """G5: with a private daemon, because the delay is per client address."""
    from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator

    watched.expected = ["401", "429"]
    with EmbeddedCoordinator(str(tmp_path_factory.mktemp("empty") / "store")) as coordinator:
        coordinator.wait_ready()
        page = context().new_page()
        watched.watch(page)
        page.goto(f"{coordinator.url}/login")
        for _ in range(10):  # the first delay is a second, which may have passed on a slow machine
            for _ in range(6):
                log_in(page, "wrong" * 10)
            if "Too many wrong tokens" in page.inner_text("[role=alert]"):
                break
        assert "Too many wrong tokens" in page.inner_text("[role=alert]")
        log_in(page, (coordinator._directory / "driver.token").read_text())
        page.wait_for_url(f"{coordinator.url}/")
        page.context.clear_cookies()
        page.goto(coordinator.client.page_link("flights").partition("&to=")[0])  # a link is no guess
        page.wait_for_url(f"{coordinator.url}/")
        assert "No job is known here yet" in page.inner_text("#jobs")


def test_logging_out_ends_the_session_of_this_browser(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.click("text=Log out")
    page.wait_for_url("**/login")
    page.goto(f"{job.coordinator.url}/jobs/flights")
    assert page.url.endswith("/login")
