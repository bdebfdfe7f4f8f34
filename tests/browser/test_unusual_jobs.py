"""Unusual jobs: names that are markup, or 10 kB long, and a thousand checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Page, expect

from barrier_runtime.coordinator.status.history import History, encode_history
from barrier_runtime.coordinator.wire.messages import ChainSpec, HeldBack
from tests.browser.living_job import JOB, living_job
from tests.coordinator.page_facts import NOW_MS, checkpoint
from tests.waiting import until

Opened = Callable[..., Page]

EVIL = "<script>window.stolen = 1</script>\"'><img src=x onerror=window.stolen=2>"
UNSEEN = "\u202eevil\u202c"
SCRIPTS = "\u7b97\u5b50 \u0645\u0634\u063a\u0644 \U0001f680 {{ 7 * 7 }}"
LONG = "x" * 10_000


@dataclass(frozen=True)
class Names:
    """Names of an operator, the submitter, a source, and a file that the source reads."""

    operator: str
    submitter: str
    source: str
    file: str


HOSTILE = {
    "markup": Names(*(f"{EVIL} {place}" for place in ("operator", "user", "source", "file"))),
    "unicode": Names(f"{UNSEEN}{SCRIPTS} operator", f"{SCRIPTS} user", f"{UNSEEN}{SCRIPTS} source", f"{UNSEEN} file"),
    "long": Names(f"operator{LONG}", "u" * 256, f"source{LONG}", f"file{LONG}"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_text_and_break_no_page(kind: str, tmp_path: Path, opened: Opened) -> None:
    """Any holder of the token can submit such names of operators, and a folder can have such files. Names of jobs and
    of sinks are refused.
    """
    names = HOSTILE[kind]
    chains = (
        ChainSpec(chain=0, operators=(names.source,), is_source=True),
        ChainSpec(chain=1, operators=(names.operator, "out"), sinks=("out",)),
    )
    with living_job(tmp_path, msgspec.structs.replace(JOB, submitter=names.submitter, chains=chains)) as job:
        job.sources = {names.source: HeldBack(names.file, NOW_MS)}
        until(lambda: any(each.split for each in job.status.sources), "split")
        last = job.status.checkpoints.history[-1].checkpoint
        page = opened(job, viewport={"width": 390, "height": 800})
        whole = page.evaluate("document.body.textContent")
        for name in (names.operator, names.submitter, names.source, names.file):
            assert name.replace("\u202e", "\\u202e").replace("\u202c", "\\u202c") in whole
        for path in ("/", "/jobs/flights", "/jobs/flights/checkpoints", f"/jobs/flights/checkpoints/{last}"):
            page.goto(f"{job.coordinator.url}{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert page.evaluate("window.stolen") is None
            assert page.locator("main script, main img").count() == 0


def test_a_thousand_checkpoints_of_earlier_runs_are_a_strip_of_a_hundred_and_a_table(
    tmp_path: Path, opened: Opened
) -> None:
    past = tuple(
        msgspec.structs.replace(checkpoint(number), outcome="declined", reason="planted")
        if number % 50 == 0
        else checkpoint(number)
        for number in range(1, 1_001)
    )
    stored = History(job=JOB.job, run_id="run-0", triggered=1_000, completed=980, failed=20, history=past)
    (tmp_path / "store" / JOB.job).mkdir(parents=True)
    (tmp_path / "store" / JOB.job / "history.json").write_bytes(encode_history(stored))
    with living_job(tmp_path) as job:
        job.until_completed(983)
        page = opened(job)
        page.keyboard.press("p")
        expect(page.locator("svg.strip a.bar")).to_have_count(100)
        assert int(page.locator("[data-live=completed]").inner_text().replace(",", "")) >= 983  # the job continues
        page.click("text=/All .* as a table/")
        rows = page.locator("tbody tr")
        expect(rows.first).to_be_visible()
        assert rows.count() == len(job.status.checkpoints.history)
        kept = rows.nth(40).locator("a")  # the coordinator is forgetting the oldest checkpoints
        number = kept.inner_text()
        kept.click()
        page.wait_for_url(f"**/checkpoints/{number}")
        expect(page.locator("h1")).to_contain_text(number)
