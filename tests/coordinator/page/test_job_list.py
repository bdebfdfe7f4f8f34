"""Rows of the list of jobs: order, filter, figures as text, and a page of a thousand jobs."""

import re

import pytest
from msgspec.structs import replace
from page_facts import NOW_MS

from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.page.figures import ABSENT, lag
from barrier_runtime.coordinator.page.job_view import job_list
from barrier_runtime.coordinator.page.render import jobs_page, static_file

DAY_MS = 86_400_000
WELL = JobSummary(
    "orders",
    "run-1",
    "running",
    None,
    "RUNNING",
    "started by ann",
    parallelism=4,
    running_since_ms=NOW_MS - 3_720_000,
    rows_per_s=12_345.6,
    lag_ms=2_300,
    latency_ms=48.0,
    checkpoint=1_234,
    checkpoint_ended_ms=NOW_MS - 2_900,
    restarts=3,
    program="5f0cabcd",
    at_ms=NOW_MS,
)
STUCK = replace(WELL, job="stuck", condition="WAITING_SLOTS", condition_reason="2 cores are missing", phase="waiting")
DONE = replace(WELL, job="a-past", condition="FINISHED", outcome="finished", phase="finished", ended_ms=NOW_MS - 60_000)
BROKEN = replace(DONE, job="b-past", condition="FAILED", condition_reason="KeyError: 'price'", outcome="failed")
ELSEWHERE = JobSummary("far", "run-2", "standby", None, "STANDBY", "led by daemon b at http://b")
ALL = [DONE, BROKEN, ELSEWHERE, WELL, STUCK]


def names(words: str = "", kind: str = "all") -> list[str]:
    return [row.job for row in job_list(ALL, words, kind).rows]


def test_living_jobs_come_first_and_among_them_those_in_trouble():
    assert names() == ["stuck", "far", "orders", "b-past", "a-past"]


@pytest.mark.parametrize(
    ("words", "kind", "found"),
    [
        ("ORDERS", "all", ["orders"]),
        ("past key", "all", ["b-past"]),
        ("5f0c stuck", "all", ["stuck"]),
        ("", "in trouble", ["stuck", "b-past"]),
        ("", "running", ["orders"]),
        ("", "ended", ["b-past", "a-past"]),
        ("price", "running", []),
        ("", "no such kind", ["stuck", "far", "orders", "b-past", "a-past"]),
        ("x" * 10_000, "all", []),
    ],
)
def test_jobs_are_filtered_by_all_words_and_by_kind(words, kind, found):
    assert names(words, kind) == found


def test_the_kinds_are_counted_over_all_jobs():
    assert job_list(ALL, "orders").kinds == (("all", 5), ("in trouble", 2), ("running", 1), ("ended", 2))


def test_a_row_has_the_figures_of_an_overview():
    row = job_list([WELL]).rows[0]
    assert (row.uptime, row.rate, row.lag, row.latency) == ("1 h 2 min", "12,346/s", "2.3 s", "48 ms")
    assert (row.checkpoint, row.checkpoint_age, row.parallelism, row.restarts) == ("1,234", "2 s ago", "4", "3")
    assert (row.version, row.reason) == ("5f0cabcd", "")
    assert job_list([replace(WELL, replaced=True)]).rows[0].version == "5f0cabcd, replaced"
    assert job_list([STUCK]).rows[0].reason == "2 cores are missing"
    assert job_list([DONE]).rows[0].uptime == "ended 1 min ago"
    assert job_list([replace(WELL, checkpoint_ended_ms=WELL.at_ms - 300)]).rows[0].checkpoint_age == "just now"


def test_unknown_figures_are_a_dash():
    row = job_list([ELSEWHERE]).rows[0]
    figures = (row.uptime, row.rate, row.lag, row.latency, row.checkpoint, row.parallelism, row.restarts, row.version)
    assert set(figures) == {ABSENT}


def test_the_lag_of_replayed_data_is_a_dash():
    assert lag(29 * DAY_MS) == "29 d 0 h"
    assert lag(4_941 * DAY_MS) == lag(None) == ABSENT


@pytest.mark.slow
def test_names_are_text_and_a_thousand_jobs_are_a_page_of_bounded_rows():
    evil = replace(STUCK, job="<script>", condition_reason="<b>" * 10_000, program="<i>")
    html = jobs_page([evil], "s3://b", "<script>alert(1)</script>", "ended")
    assert "<script>alert" not in html
    assert "<b>" not in html.replace("<b>0</b>", "").replace("<b>1</b>", "")
    many = jobs_page([replace(WELL, job=f"job-{n}") for n in range(1_000)], "s3://b")
    assert len(re.findall(r'<td class="job">', many)) == 1_000
    thirty = jobs_page([replace(STUCK, job=f"job-{n}", condition_reason="R" * 10_000) for n in range(30)], "s3://b")
    assert len(thirty.encode()) + len(static_file("page.css")) + len(static_file("page.js")) <= 150_000
