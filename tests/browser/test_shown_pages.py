"""Pages of a running job in a real browser: figures, charts, the stream, the keyboard."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Watched
from tests.browser.living_job import ANSWERS, LivingJob

Opened = Callable[..., Page]


def test_the_list_of_jobs_leads_to_a_job(job: LivingJob, opened: Opened) -> None:
    page = opened(job, "/")
    assert page.inner_text("tbody .badge") == "RUNNING"
    page.click("text=flights")
    expect(page.locator("h1 bdi")).to_have_text("flights")


def test_the_list_of_jobs_is_filtered_while_one_types_and_by_its_address(job: LivingJob, opened: Opened) -> None:
    page = opened(job, "/")
    page.fill("[name=q]", "nothing like this")
    expect(page.locator("#jobs")).to_contain_text("No job matches")
    assert "q=nothing" in page.url
    page.fill("[name=q]", "fligh run")
    expect(page.locator("#jobs tbody tr")).to_have_count(1)
    page.click("text=/^Ended/")
    expect(page.locator("#jobs")).to_contain_text("No job matches")
    assert page.input_value("[name=q]") == "fligh run"
    page = opened(job, "/?q=flights&show=running", java_script_enabled=False)
    assert page.locator("#jobs tbody tr").count() == 1


def test_the_list_of_jobs_has_figures_of_each_job(job: LivingJob, opened: Opened) -> None:
    page = opened(job, "/")
    expect(page.locator("#jobs td[data-label=Uptime]")).to_have_text(re.compile(" (ms|s|min|h)"))
    expect(page.locator("#jobs td[data-label=Checkpoint]")).to_contain_text(re.compile(" ago|just now"))
    assert page.inner_text("#jobs td[data-label=Slots]") == "2"


def test_the_figures_are_those_of_the_status(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    status = job.status
    assert page.inner_text("h1 .badge") == status.condition
    assert page.inner_text("[data-live=generation]") == str(status.token)
    assert page.inner_text("[data-live=slots]") == "2 of 2"
    completed = int(page.inner_text("[data-live=completed]").replace(",", ""))
    assert 3 <= completed <= job.status.checkpoints.completed


def test_figures_change_in_place(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.evaluate("document.querySelector('[data-live=records]').dataset.planted = 'same element'")
    job.records += 5_000
    expect(page.locator("[data-planted]")).to_have_text(f"{2 * job.records:,}")


def test_sections_are_brought_up_to_date_without_loading_the_page_anew(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.evaluate("window.planted = 'the same page'")
    page.click("#slots-table > summary")
    before = page.locator("#checkpoints tbody tr td").first.inner_text()
    expect(page.locator("#checkpoints tbody tr td").first).not_to_have_text(before)
    assert page.evaluate("window.planted") == "the same page"
    assert page.locator("#slots-table").get_attribute("open") is not None, "what was opened stays open"


def test_a_paused_page_stands_still_until_it_follows_again(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    shown = page.inner_text("[data-live=completed]")
    page.evaluate(
        """() => new Promise(done => { let ticks = 0; const stream = new EventSource("/jobs/flights/events");
        stream.addEventListener("tick", () => { ticks += 1; if (ticks === 3) { stream.close(); done(); } }); })"""
    )
    assert page.inner_text("[data-live=completed]") == shown
    page.click("#pause")
    expect(page.locator("[data-live=completed]")).not_to_have_text(shown)


def test_a_bar_of_the_strip_shows_its_checkpoint_below_and_stays_pinned(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.keyboard.press("p")  # the last bar stays the last bar until the click
    bar = page.locator("svg.strip a.bar").last
    number = (bar.get_attribute("href") or "").rpartition("/")[2]
    bar.click()
    picked = page.locator("#picked")
    expect(picked.locator("svg.subtasks")).to_be_visible()
    expect(picked.locator("a").first).to_have_text(f"Checkpoint {number}")
    page.keyboard.press("p")
    newer = str(int(number) + 2)
    job.until_completed(int(newer))
    expect(page.locator(f'svg.strip a.bar[href$="/{newer}"]')).to_be_attached()
    expect(page.locator("svg.strip a.bar.picked")).to_have_attribute("href", f"/jobs/flights/checkpoints/{number}")
    assert picked.locator("a").first.inner_text() == f"Checkpoint {number}"
    page.click("text=Follow the newest")
    expect(picked.locator("a").first).not_to_have_text(f"Checkpoint {number}")
    page.click("#picked >> text=Close")
    expect(picked).to_be_hidden()


def test_a_checkpoint_that_was_picked_leads_to_its_page(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.keyboard.press("p")
    bar = page.locator("svg.strip a.bar").last
    number = (bar.get_attribute("href") or "").rpartition("/")[2]
    bar.click()
    page.click(f"#picked >> text=Checkpoint {number}")
    page.wait_for_url(f"**/checkpoints/{number}")
    assert page.inner_text("h1").startswith(f"Checkpoint {number}")
    assert "trigger to end" in page.inner_text("main")


def test_the_keyboard_goes_along_the_strip_and_from_checkpoint_to_checkpoint(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.keyboard.press("p")
    page.locator("svg.strip a.bar").nth(-3).focus()
    page.keyboard.press("ArrowRight")
    number = page.evaluate("document.activeElement.getAttribute('href')").rpartition("/")[2]
    page.keyboard.press("Enter")
    expect(page.locator("#picked a").first).to_have_text(f"Checkpoint {number}")
    page.goto(f"{job.coordinator.url}/jobs/flights/checkpoints/{number}")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(f"**/checkpoints/{int(number) + 1}")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(f"**/checkpoints/{number}")


def test_all_checkpoints_are_there_as_a_table(job: LivingJob, opened: Opened) -> None:
    page = opened(job, "/jobs/flights/checkpoints")
    numbers = [int(text) for text in page.locator("tbody tr td:first-child").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) >= 3


def test_everything_is_reached_by_tab_and_the_first_stop_skips_to_the_content(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.keyboard.press("p")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"{reached[-1]} does not show that it has the focus"
    assert {"jobs", "Follow", "Log out", "Checkpoint…", "Savepoint…", "Rescale…", "Stop with a checkpoint…"} <= set(
        reached
    )


def test_without_scripts_the_page_is_complete(job: LivingJob, opened: Opened, watched: Watched) -> None:
    page = opened(job, java_script_enabled=False)
    assert page.locator("svg.strip a.bar").count() >= 3
    assert page.locator("svg.timeline:visible").count() == 1
    assert page.locator("#checkpoints tbody tr").count() >= 3
    assert re.fullmatch(r"[\d,]+", page.inner_text("[data-live=records]"))
    assert not page.locator(".actions").first.is_visible(), "a button that can do nothing is not shown"
    assert "barrier-runtime stop flights --coordinator http://127.0.0.1:" in page.inner_text("#lines")


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window(job: LivingJob, opened: Opened, width: int) -> None:
    page = opened(job, viewport={"width": width, "height": 844})
    newest = f"/jobs/flights/checkpoints/{job.status.checkpoints.history[-1].checkpoint}"
    slots = ("/jobs/flights/slots", "/jobs/flights/slots/0/log", "/jobs/flights/slots/0/stacks")
    for path in ("/", "/jobs/flights", "/jobs/flights/checkpoints", newest, *slots, "/login"):
        page.goto(f"{job.coordinator.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


# Left and right ends: of the visible time axis (not of the hidden axis), of the newest bar of the strip.
_IN_VIEW = """() => {
    const ends = (found) => found.map((each) => each.getBoundingClientRect())
        .filter((box) => box.height > 0).map((box) => [box.left, box.right]);
    const all = (selector) => [...document.querySelectorAll(selector)];
    return [ends(all("svg.timeline [class^=m-], svg.timeline .t-done")), ends(all("svg.strip a.bar").slice(-1))];
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_newest_is_in_view_without_scrolling_sideways(job: LivingJob, opened: Opened, width: int) -> None:
    """All of the time axis, and the newest checkpoint of the strip."""
    page = opened(job, viewport={"width": width, "height": 844})
    told, newest = page.evaluate(_IN_VIEW)
    assert len(told) >= 1
    assert newest
    for left, right in (*told, *newest):
        assert 0 <= left <= right <= width


def test_colours_follow_the_systems_setting_and_can_be_read(job: LivingJob, opened: Opened) -> None:
    """Contrast as WCAG defines the ratio: at least 4.5."""
    for scheme in ("light", "dark"):
        page = opened(job, color_scheme=scheme)
        for selector in ("h1", ".quiet", ".badge", "a", ".legend", "td"):
            ink, ground = page.evaluate(_COLOURS, selector)
            assert _contrast(ink, ground) >= 4.5, (scheme, selector, ink, ground)
        dark = sum(page.evaluate(_COLOURS, "h1")[1]) < 3 * 128
        assert dark == (scheme == "dark")


# Address and bytes of all that the page loaded, the browser's cache included; without the stream.
_LOADED = """() => Object.fromEntries(
    [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .filter((each) => !each.name.endsWith("/events")).map((each) => [each.name, each.encodedBodySize]))"""


def test_the_first_view_is_small_and_of_one_host(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.reload(wait_until="load")
    sizes: dict[str, int] = page.evaluate(_LOADED)
    assert {"/jobs/flights", "/static/page.css", "/static/page.js"} <= {urlsplit(url).path for url in sizes}
    assert len(sizes) <= 4
    assert 10_000 <= sum(sizes.values()) <= 150_000, sizes
    assert all(url.startswith(job.coordinator.url) for url in sizes)


def test_one_tick_is_small(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    lengths = page.evaluate(
        """() => new Promise(done => { const seen = []; const stream = new EventSource("/jobs/flights/events");
        stream.addEventListener("tick", each => { seen.push(each.data.length);
        if (seen.length === 3) { stream.close(); done(seen); } }); })"""
    )
    assert max(lengths) <= 5_000, "bytes per second"


def test_a_box_of_the_graph_shows_the_subtasks_of_its_step(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    box = page.locator("svg.graph a").first
    address = box.get_attribute("href") or ""
    box.click()
    expect(page.locator("#step tbody tr")).to_have_count(2)
    box = page.locator("svg.graph a").first
    box.click()
    expect(page.locator("#step")).to_be_hidden()
    page.goto(f"{job.coordinator.url}{address}")
    assert page.locator("main tbody tr").count() == 2
    page.goto(f"{job.coordinator.url}/jobs/flights/failures")
    assert page.inner_text("h1") == "Failures"


def test_a_part_is_loaded_when_it_is_opened(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.click("#latency-hour > summary")
    expect(page.locator("#latency-hour > div")).to_contain_text("No row has reached a sink yet")


def test_logs_and_stacks_of_a_slot_are_asked_for_on_the_page_of_slots(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.click("text=Logs and stacks of slots")
    page.locator("tr", has_text="running").nth(1).locator("text=log").click()
    assert page.inner_text("h1") == "Slot 1: log"
    shown = page.inner_text("pre")
    assert shown.index("ERROR app: newer") < shown.index("<b>older</b>"), "the newest first, and as text"
    page.click("text=Stacks")
    assert 'File "app.py", line 3, in f' in page.inner_text("pre")


def test_rows_of_a_step_are_shown_on_demand_and_as_text(job: LivingJob, opened: Opened) -> None:
    page = opened(job)
    page.locator("svg.graph a").first.click()
    page.locator("#step a", has_text="numbers").last.click()
    assert page.inner_text("h1") == "Rows of numbers"
    assert '{"n": 7, "name": "<i>row</i>"}' in page.inner_text("pre")


def test_a_slot_that_does_not_answer_is_named_with_a_remedy(job: LivingJob, opened: Opened, watched: Watched) -> None:
    watched.expected = ["503", "400"]
    job.answers.pop("stacks")
    try:
        page = opened(job, "/jobs/flights/slots/0/stacks")
        assert re.search(r"slot 0 has not answered .* py-spy dump --pid \d+", page.inner_text("main"))
    finally:
        job.answers.update(ANSWERS)
    page.goto(f"{job.coordinator.url}/jobs/flights/slots/9/log")
    assert "job flights has no slot 9" in page.inner_text("main")


def test_what_is_not_there_is_said_in_plain_words(job: LivingJob, opened: Opened, watched: Watched) -> None:
    watched.expected = ["404", "400"]
    page = opened(job, "/jobs/nojob")
    assert "job nojob is not known to this coordinator" in page.inner_text("main")
    page.goto(f"{job.coordinator.url}/jobs/flights/checkpoints/999999")
    assert "No checkpoint 999999" in page.inner_text("h1")
    page.goto(f"{job.coordinator.url}/jobs/UPPER")
    assert "is not allowed" in page.inner_text("main")


def test_the_report_opens_from_a_file_without_a_script_or_a_request(
    job: LivingJob, context: Callable[..., BrowserContext], tmp_path: Path, watched: Watched
) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(job.coordinator.client.report("flights"))
    page = context().new_page()
    watched.watch(page)
    page.goto(file.as_uri())
    assert page.locator("svg.strip").count() == 1
    assert page.locator("script").count() == 0
    assert page.inner_text("h1 bdi") == "flights"
    assert watched.hosts == {""}


_COLOURS = """selector => {
    const element = document.querySelector(`main ${selector}`);
    const parts = text => text.match(/[\\d.]+/g).map(Number);
    let ground = element;
    while (ground && (parts(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
    return [parts(getComputedStyle(element).color).slice(0, 3),
            parts(getComputedStyle(ground || document.documentElement).backgroundColor).slice(0, 3)];
}"""


def _contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: list[float]) -> float:
    parts = [each / 255 for each in colour]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
