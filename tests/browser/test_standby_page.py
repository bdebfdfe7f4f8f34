"""The page of a standby daemon: the leader's stored status, no buttons, and a link to the leader."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page
from test_daemon import JOB, Daemon, one_checkpoint, running_slots

from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.coordinator.wire.messages import CommitFailing, Trigger
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.local import LocalStore
from tests.browser.conftest import Watched
from tests.waiting import until


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    lease = ("--lease", "3000")  # no standby takes over, however slow the machine is
    with Daemon(tmp_path, *lease) as first, Daemon(tmp_path, *lease) as second:
        for daemon in (first, second):
            until(lambda daemon=daemon: _answers(daemon), "the daemon to answer")
        yield first, second


def _answers(daemon: Daemon) -> bool:
    try:
        return bool(daemon.client.health())
    except Unavailable:
        return False


def logged_in(page: Page, daemon: Daemon) -> Page:
    page.goto(f"{daemon.client.url}/login")
    page.fill("#token", "5" * 64)
    page.click("button[type=submit]")
    page.wait_for_url(f"{daemon.client.url}/")
    return page


def bars(page: Page) -> list[str]:
    return page.locator("svg.strip a.bar title").all_text_contents()


def test_a_standby_shows_the_same_history_and_changes_nothing(
    daemons: tuple[Daemon, Daemon], context: Callable[..., BrowserContext], watched: Watched
) -> None:
    leader, standby = daemons
    slots = running_slots(leader)
    try:
        for _ in range(3):
            one_checkpoint(slots)
        number = slots[0].until(Trigger).checkpoint
        slots[0].say(CommitFailing(slots[0].token, number, "out", 0, 3, "the disk is full"))
        until(lambda: _stored(standby), "history")
        page = context().new_page()
        watched.watch(page)
        logged_in(page, standby)
        assert page.inner_text("tbody .badge") == "STANDBY"
        page.click(f"tbody >> text={JOB.job}")
        page.wait_for_url(f"**/jobs/{JOB.job}")
        assert "Nothing can be changed here: this daemon stands by" in page.inner_text(".notice")
        assert page.locator("button[data-dialog]").count() == 0
        assert "the disk is full (3 attempts since " in page.inner_text("#transactions")
        shown = bars(page)
        # The leader's page has another port: the cookie of the same token is valid on both.
        assert page.locator(".notice a").get_attribute("href") == f"{leader.client.url}/jobs/{JOB.job}"
        other = logged_in(context().new_page(), leader)
        other.goto(f"{leader.client.url}/jobs/{JOB.job}")
        assert set(shown) <= set(bars(other))
        assert len(shown) >= 3
        page.locator("svg.strip a.bar").first.click()
        page.wait_for_selector("#picked svg.subtasks")
    finally:
        for slot in slots:
            slot.close()


def _stored(standby: Daemon) -> bool:
    store = LocalStore.existing(Path(standby.token_file.parent) / "store")
    try:
        history = decode_history("history", store.get(f"{JOB.job}/history.json"))
    except BarrierRuntimeError:
        return False
    return history.completed >= 3 and bool(history.commits.troubles)
