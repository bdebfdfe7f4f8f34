"""Effects of a page on a job, and of the end of a job or a coordinator on a page: each test with a separate job."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from barrier_runtime.coordinator.status.history import History
from tests.browser.conftest import Watched
from tests.browser.living_job import LivingJob, living_job
from tests.waiting import until

Opened = Callable[..., Page]


@pytest.fixture
def own_job(tmp_path: Path):
    with living_job(tmp_path) as running:
        yield running


def test_a_checkpoint_is_taken_after_a_confirmation_that_names_the_command(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.click("text=Checkpoint…")
    dialog = page.locator("#ask-checkpoint")
    expect(dialog).to_be_visible()
    assert "barrier-runtime checkpoint flights --coordinator" in dialog.inner_text()
    with page.expect_response(lambda each: each.request.method == "POST") as answer:
        page.click("#ask-checkpoint button[value=ok]")
    assert answer.value.status == 202
    expect(page.locator("#said")).to_have_text("Take a checkpoint: accepted")


def test_a_savepoint_is_taken_where_the_dialog_says(job: LivingJob, opened: Opened, tmp_path: Path) -> None:
    """The dialog's command contains the typed text, and the savepoint is a mark on the time axis."""
    page = opened(job)
    page.click("text=Savepoint…")
    dialog = page.locator("#ask-savepoint")
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()  # a savepoint needs a place
    page.keyboard.type(str(tmp_path / "kept"))
    assert f"barrier-runtime savepoint flights --to {tmp_path}/kept --coordinator" in dialog.inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("Take a savepoint: accepted")
    taken = until(lambda: next((each for each in job.status.savepoints if each.ended_ms), None), "savepoint")
    assert (taken.state, taken.error) == ("done", "")
    assert (tmp_path / "kept" / "savepoint.json").exists()
    expect(page.locator("#events-table")).to_contain_text("savepoint done")
    assert page.locator("svg.timeline:visible .m-savepoint").count() == 1


def test_a_rescale_is_asked_for_with_the_number_of_the_dialog(own_job: LivingJob, opened: Opened) -> None:
    """No slots register in this test: the job continues unchanged, and the page shows the reason."""
    page = opened(own_job)
    page.click("text=Rescale…")
    dialog = page.locator("#ask-rescale")
    page.keyboard.type("3")
    assert "barrier-runtime rescale flights --parallelism 3 --coordinator" in dialog.inner_text()
    with page.expect_request(lambda each: each.method == "POST") as asked:
        page.keyboard.press("Enter")
    assert '"parallelism":3' in (asked.value.post_data or "")
    expect(page.locator("#said")).to_have_text("Rescale the job: accepted")
    expect(page.locator("#events-table")).to_contain_text("rescale 2 → 3 slots: starting")
    assert page.locator("svg.timeline:visible .m-rescale").count() == 1


def test_a_dialog_that_is_left_changes_nothing(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    posts: list[str] = []
    page.on("request", lambda each: each.method == "POST" and posts.append(each.url))
    for button, dialog in (("Stop with a checkpoint…", "#ask-stop"), ("Stop without a checkpoint…", "#ask-now")):
        page.click(f"text={button}")
        assert page.evaluate("document.activeElement.textContent") == "Cancel", "return must not stop a job"
        page.keyboard.press("Enter")
        expect(page.locator(dialog)).to_be_hidden()
        page.click(f"text={button}")
        page.keyboard.press("Escape")
        expect(page.locator(dialog)).to_be_hidden()
    assert posts == []
    assert job.status.outcome is None


def test_a_session_alone_changes_nothing_from_another_site(job: LivingJob, opened: Opened, watched: Watched) -> None:
    """G5: a form of another site has neither the header nor the cookie."""
    watched.expected = ["403"]
    page = opened(job)
    status = page.evaluate("""() => fetch("/jobs/flights/stop", {method: "POST"}).then(answer => answer.status)""")
    assert status == 403
    assert job.status.outcome is None


def test_stopping_a_job_ends_it_and_the_page_says_so(own_job: LivingJob, opened: Opened) -> None:
    page = opened(own_job)
    page.click("text=Stop with a checkpoint…")
    page.click("#ask-stop button[value=ok]")
    expect(page.locator("h1 .badge")).to_have_text("STOPPED")
    page.reload()
    assert page.locator("button[data-dialog]").count() == 0


_NOTE_WHAT_IS_SAID = """() => {
  window.said = [];
  const away = document.getElementById("away");
  new MutationObserver(() => away.hidden || window.said.push(away.textContent)).observe(away, { attributes: true });
}"""


def test_a_killed_coordinator_takes_nothing_from_an_open_page_nor_from_a_link(
    own_job: LivingJob, opened: Opened, context: Callable[..., BrowserContext], watched: Watched
) -> None:
    """Session, checkpoints, generations and a failing commit are shown again, and the figures continue without a
    reload. An unused link opens the page of the next process, once.
    """
    unused = own_job.coordinator.client.page_link("flights")
    watched.expected = [
        "401",
        "/events net::ERR",
        "/jobs/flights net::ERR",
        "ERR_CONNECTION",
        "ERR_INCOMPLETE",
        "ERR_EMPTY",
    ]
    page = opened(own_job)
    page.evaluate("window.planted = 'the same page'")
    page.evaluate(_NOTE_WHAT_IS_SAID)
    expect(page.locator("#away")).to_be_hidden()
    own_job.records += 1
    expect(page.locator("[data-live=records]")).to_have_text(f"{2 * own_job.records:,}")  # the page follows the job
    own_job.commit_error = "the disk of slot 0 is full"

    def stored_failure() -> History | None:
        history = own_job.stored_history()
        return history if history.commits.troubles else None

    before = until(stored_failure, "it to be written down")
    os.kill(own_job.coordinator.pid, signal.SIGKILL)
    until(lambda: own_job.coordinator.restarts, "another process")
    own_job.until_completed(before.completed + 2)
    assert own_job.status.commits.troubles == before.commits.troubles, "its slot has not said it again"
    expect(page.locator("#transactions")).to_contain_text("the disk of slot 0 is full (1 attempt since ")
    own_job.records += 777
    expect(page.locator("[data-live=records]")).to_have_text(f"{2 * own_job.records:,}")
    assert page.evaluate("window.planted") == "the same page"
    assert "The coordinator has not answered since" in page.evaluate("window.said")[0]
    expect(page.locator("#away")).to_be_hidden()
    page.goto(f"{own_job.coordinator.url}/jobs/flights/checkpoints")
    shown = {int(text) for text in page.locator("tbody tr td:first-child").all_inner_texts()}
    assert {each.checkpoint for each in before.history} <= shown
    for opens in (True, False):
        other = context().new_page()
        watched.watch(other)
        other.goto(unused)
        if opens:
            other.wait_for_url(f"{own_job.coordinator.url}/jobs/flights")
            assert other.inner_text("h1 bdi") == "flights"
        else:
            assert "This link was used already" in other.inner_text("[role=alert]")
            line = other.inner_text("pre code")
            assert line.startswith(
                f"barrier-runtime page flights --coordinator {own_job.coordinator.url} --token-file /"
            )


PLANTED = "<script>window.stolen = 1</script>\"'><img src=x onerror=window.stolen=2> \u202eevil\u202c {{ 7 * 7 }}"


def test_what_others_wrote_is_text_and_nothing_else(own_job: LivingJob, opened: Opened) -> None:
    """G3: an error of users' code with tags, quotes and marks of direction, on all pages that show the error."""
    own_job.decline = PLANTED
    failed = until(lambda: next(iter(_failed(own_job)), None), "failed checkpoint")
    page = opened(own_job)
    page.keyboard.press("p")
    for path in ("/jobs/flights", "/jobs/flights/checkpoints", f"/jobs/flights/checkpoints/{failed}"):
        page.goto(f"{own_job.coordinator.url}{path}")
        text = page.inner_text("main")
        assert "<script>window.stolen = 1</script>" in text
        assert "\\u202eevil\\u202c {{ 7 * 7 }}" in text
        assert page.evaluate("window.stolen") is None


def _failed(job: LivingJob) -> list[int]:
    return [each.checkpoint for each in job.status.checkpoints.history if each.outcome == "declined"]


def test_no_script_but_the_pages_own_runs(job: LivingJob, opened: Opened, watched: Watched) -> None:
    """G3: even if a text was left unescaped."""
    watched.expected = ["Content Security Policy"]
    page = opened(job)
    page.evaluate("""() => { const script = document.createElement("script"); script.textContent = "window.stolen = 1";
        document.body.append(script); const image = document.createElement("img");
        image.setAttribute("onerror", "window.stolen = 2"); image.src = "/static/none.png"; document.body.append(image);
        return new Promise(done => image.addEventListener("error", done)); }""")
    assert page.evaluate("window.stolen") is None
    watched.expected.append("404")


def test_failed_checkpoints_are_told_apart_and_say_why(own_job: LivingJob, opened: Opened) -> None:
    own_job.decline = "the disk of slot 1 is full"
    failed = until(lambda: next(iter(_failed(own_job)), None), "failed checkpoint")
    page = opened(own_job)
    assert page.locator("svg.strip .p-failed").count() == 1
    assert "the disk of slot 1 is full" in page.inner_text("#failures")
    page.goto(f"{own_job.coordinator.url}/jobs/flights/checkpoints/{failed}")
    assert page.inner_text("h1 .badge") == "declined"
    assert "the disk of slot 1 is full" in page.inner_text("main")


def test_transactions_that_wait_are_counted(own_job: LivingJob, opened: Opened) -> None:
    own_job.hold_commits = True
    own_job.until_completed(own_job.status.checkpoints.completed + 3)
    page = opened(own_job)
    rows = page.locator("#transactions tbody tr")
    assert rows.locator("td:first-child").all_inner_texts() == ["out/0", "out/1"]
    waiting = [int(text) for text in rows.locator("td:nth-child(5)").all_inner_texts()]
    assert [count >= 2 for count in waiting] == [True, True], waiting


def test_a_coordinator_without_a_page_serves_none(
    tmp_path: Path, context: Callable[..., BrowserContext], watched: Watched
) -> None:
    from barrier_runtime.coordinator.client.client import UnknownJob
    from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator, WebOptions

    watched.expected = ["401"]
    with EmbeddedCoordinator(str(tmp_path / "store"), web=WebOptions(ui=False)) as coordinator:
        coordinator.wait_ready()
        with pytest.raises(UnknownJob, match="has no page: start it without --no-ui"):
            coordinator.client.page_link("flights")
        page = context().new_page()
        watched.watch(page)
        page.goto(f"{coordinator.url}/login")
        assert "a bearer token is required" in page.inner_text("body")
