"""Pages and reports as text: shown and omitted parts of a status, and names that are never more than text."""

import base64
import re
import time
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from page_facts import NOW_MS, TRACEBACK, checkpoint, status

from barrier_runtime.coordinator.page import charts, checkpoint_chart, job_view, render
from barrier_runtime.coordinator.page.charts import hour_charts
from barrier_runtime.coordinator.page.checkpoint_chart import phases_of, strip, subtasks, timeline
from barrier_runtime.coordinator.page.figures import ABSENT, count_ticks, duration_ticks, time_ticks
from barrier_runtime.coordinator.page.job_view import events, live
from barrier_runtime.coordinator.page.render import (
    SUBTASKS_LISTED,
    CommandLine,
    JobFacts,
    explained,
    inert,
    job_page,
    masked,
    report,
    static_file,
)
from barrier_runtime.coordinator.status.history import packed, unpacked
from barrier_runtime.coordinator.status.shares import SubtaskWork
from barrier_runtime.coordinator.status.status import (
    ChainStatus,
    CheckpointsStatus,
    CheckpointStatus,
    CommitsStatus,
    CommitTrouble,
    JobStatus,
    RescaleStatus,
)
from barrier_runtime.coordinator.status.transactions import of_sinks
from barrier_runtime.coordinator.status.trend import TrendPoint
from barrier_runtime.coordinator.status.why.reason import Reason
from barrier_runtime.coordinator.wire.messages import Ack, SubtaskId
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes
from barrier_runtime.state.texts import masked_text

REASON = Reason("store", "Checkpoint 120 failed: the disk is full.", ("df says 100 %",), "free some")
EVIL = "<script>alert(1)</script>\"'><b>&amp; \u202edlrow\u2066"


def facts(of: JobStatus | None = None, **more: object) -> JobFacts:
    return JobFacts(of or status(), NOW_MS, {120: REASON}, **more)  # type: ignore[arg-type]


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def empty() -> JobStatus:
    return status(
        checkpoints=CheckpointsStatus(),
        recoveries=(),
        slots=(),
        chains=(),
        sources=(),
        latency={},
        latency_last_minute={},
        latency_hour={},
        failures=(),
        takeovers=(),
        savepoints=(),
        token=None,
        watermark_ms=None,
    )


@pytest.mark.slow
def test_a_job_is_shown_with_everything_that_is_known():
    html = render.job_page(facts())
    assert len(svgs(html)) == 5  # latency of an hour, graph, events twice, checkpoints
    assert len(svgs(render.latency_page(facts()))) == 4  # two for each of two latencies
    assert len(svgs(report(facts()))) >= 8
    for text in (
        "part-3</bdi> in slot 1",
        "slot 1 is lost: process 101",
        "coordinator replaced in generation 3",
        "2.5 s",
    ):
        assert text in html
    assert "KeyError: &#39;price&#39;" in html, TRACEBACK
    assert REASON.sentence in html


def test_what_is_not_known_is_absent_and_never_zero():
    html = render.job_page(facts(empty()))
    for text in (
        "The graph is not known",
        "No checkpoint has ended yet",
        "No row has reached a sink",
        "No failures recorded",
    ):
        assert text in html
    figures = live(empty(), NOW_MS)
    unknown = {"rate", "lag", "checkpoint", "checkpoint_took", "checkpoint_age", "state", "generation"}
    assert {name for name, text in figures.items() if text == "\u2013"} >= unknown
    assert svgs(html) == []


def test_a_coordinator_that_was_killed_is_told_as_a_killed_slot_is():
    killed = replace(status().takeovers[0], ended="process 71 died of SIGKILL", away_ms=640)
    shown = next(each for each in events(status(takeovers=(killed,))) if each.kind == "takeover")
    assert (shown.why, shown.took_ms) == ("process 71 died of SIGKILL; slots went on", 640)
    assert shown.at_ms == killed.at_ms - 640
    assert "process 71 died of SIGKILL; slots went on" in render.job_page(facts(status(takeovers=(killed,))))
    assert "died, stalled or left" in render.job_page(facts())


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("`count \u2192 out` is the bottleneck", "<code>count \u2192 out</code> is the bottleneck"),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("one ` alone", "one ` alone"),
        ("`` nothing between", "`` nothing between"),
        ("`<b>&` <i>", "<code>&lt;b&gt;&amp;</code> &lt;i&gt;"),
        ("`</code><script>` `", "<code>&lt;/code&gt;&lt;script&gt;</code> `"),
        ("", ""),
    ],
)
def test_names_in_backticks_are_shown_as_code_and_escaped(sentence, shown):
    assert str(render.coded(sentence)) == shown


def test_reasons_are_shown_without_backticks():
    named = Reason("busy", "`a` is `<b>`", ("`a` waits",), "look at `a`")
    html = render.job_page(facts(of_job=(named,)))
    card = html[html.index('id="why"') : html.index('id="graph"')]
    assert "`" not in card
    for text in ("<code>a</code> is <code>&lt;b&gt;</code>", "<li><code>a</code> waits</li>", "look at <code>a</code>"):
        assert text in card


def test_the_time_axis_has_every_event_on_a_narrow_screen_too():
    broad, narrow = (each for each in svgs(render.job_page(facts())) if "timeline" in each.get("class", ""))
    assert [each.get("class") for each in (broad, narrow)] == ["chart timeline broad", "chart timeline narrow"]
    told = [[each.text for each in one.iter("title")] for one in (broad, narrow)]
    assert [each for each in told[0] if not re.match(r"[\d:]+ checkpoint \d+ declined", str(each))] == told[1]
    assert len(told[1]) > 3
    drawn = [float(each.get("x", "nan")) for each in narrow.iter("rect")]
    assert drawn
    assert all(96 <= x <= 328 for x in drawn)


def test_the_rate_is_told_only_when_every_source_tells_its_own():
    first = status().chains[0]
    assert live(status(), NOW_MS)["rate"] == "7,000/s"
    silent = replace(first, chain=2, rows_in_per_s=None)
    assert live(status(chains=(first, silent)), NOW_MS)["rate"] == "\u2013"


def test_a_sink_that_lags_has_its_decided_checkpoints_counted():
    by_name = {each.sink: each for each in of_sinks(status(), NOW_MS)}
    assert (by_name["files/0"].pending, by_name["files/1"].pending) == (0, 3)
    assert by_name["files/1"].oldest_ms == 3_000 - 110
    assert by_name["files/1"].error == "the disk is full"


def test_an_event_says_how_long_no_checkpoint_completed_around_it():
    """What a kill has cost: 120 was declined a second before, the checkpoints beside it are a second apart."""
    shown = events(status(takeovers=(replace(status().takeovers[0], at_ms=NOW_MS - 30_000),)))
    assert [(each.what, each.took_ms, each.gap_ms) for each in shown] == [
        ("savepoint done, of checkpoint 145", 1_000, None),
        ("coordinator replaced in generation 3", None, 2_000),
        ("recovery, generation 3", 600, 1_000),
        ("start, generation 1", 1_000, None),
    ]
    assert events(empty()) == []


def test_the_phases_of_a_bar_are_those_of_the_last_subtask_and_add_up():
    one = checkpoint(149)
    assert phases_of(one) == [
        ("start", 10.0),
        ("align", 20.0),
        ("sync", 5.0),
        ("async", 50.0),
        ("acks", 15.0),
        ("persist", 5.0),
        ("decide", 5.0),
        ("commit", 12.0),
    ]
    assert phases_of(replace(one, subtasks=()))[0] == ("acks", 100.0)
    assert phases_of(checkpoint(1, outcome="expired")) == [("failed", 110)]


@given(st.lists(st.floats(0, 1e6), min_size=4, max_size=4), st.integers(0, 10**6))
def test_phases_never_exceed_the_time_until_the_last_ack(parts, acks):
    one = checkpoint(149)
    subtask = replace(
        one.subtasks[0], start_delay_ms=parts[0], alignment_ms=parts[1], sync_ms=parts[2], async_ms=parts[3]
    )
    until_acks = [
        took
        for name, took in phases_of(replace(one, subtasks=(subtask,), ack_duration_ms=acks))
        if name not in ("persist", "decide", "commit")
    ]
    assert sum(until_acks) == pytest.approx(acks)
    assert all(took > 0 for took in until_acks)


def test_one_slow_checkpoint_leaves_the_others_visible():
    history = [checkpoint(number) for number in range(50)] + [checkpoint(50, ack_duration_ms=600_000, subtasks=())]
    picture = strip(history, "/x/")
    heights = [
        float(h) for h in re.findall(r"v([\d.]+)h-[\d.]+z", re.search(r'class="p-acks" d="([^"]*)"', picture)[1])
    ]
    assert max(heights) <= 160
    assert min(heights) > 1
    assert "▲" in picture


def test_checkpoints_that_are_known_from_the_log_alone_have_no_bar():
    bare = CheckpointStatus(checkpoint=7, token=1, outcome="complete", triggered_ms=NOW_MS, duration_ms=0)
    assert strip([bare], "/x/") == ""
    assert render.checkpoint_page(facts(status(checkpoints=CheckpointsStatus(history=(bare,)))), 7) is not None


def test_the_page_of_a_checkpoint_says_why_and_shows_its_subtasks():
    html = render.checkpoint_page(facts(), 120)
    assert html is not None
    assert REASON.sentence in html
    assert "What to do: free some" in html
    assert "subtask 1/0 refused: disk full" in html
    other = render.checkpoint_page(facts(), 149)
    assert other is not None
    assert 'href="/jobs/flights/checkpoints/148"' in other
    assert svgs(other)[0].get("aria-label") == "phases of 2 subtasks, the slowest first"
    assert render.checkpoint_page(facts(), 12) is None


def test_all_subtasks_of_a_checkpoint_are_listed_page_by_page():
    ids = [SubtaskId(0, index) for index in range(500)]
    acks = {each: Ack(1, 7, each, (), SnapshotTimes(1.0, 2.0, 3.0, 4.0, rows=5)) for each in ids}
    known = packed(acks, {each: NOW_MS + each.index for each in ids}, NOW_MS)
    one = replace(checkpoint(7), phases=known, subtasks=tuple(unpacked(known)[:16]), parts=500)
    of = facts(status(checkpoints=CheckpointsStatus(history=(one,))))

    def listed(html: str) -> tuple[list[int], list[str]]:
        section = html[html.index('id="subtasks"') :]
        return [int(each) for each in re.findall(r"<td><bdi>0/(\d+) ", section)], re.findall(r"from=(\d+)#", section)

    first = render.checkpoint_page(of, 7)
    assert listed(first) == (list(range(499, 299, -1)), ["200"])
    assert listed(render.checkpoint_page(of, 7, 200)) == (list(range(299, 99, -1)), ["0", "400"])
    assert listed(render.checkpoint_page(of, 7, 400)) == (list(range(99, -1, -1)), ["200"])
    assert render.checkpoint_page(of, 7, 10**18) == first
    assert len(first.encode()) + len(static_file("page.css")) + len(static_file("page.js")) <= 150_000
    older = facts(status(checkpoints=CheckpointsStatus(history=(replace(one, phases=b""),))))
    assert "kept for newer checkpoints only" in render.checkpoint_page(older, 7)


@pytest.mark.parametrize("where", ["job", "report", "checkpoint"])
def test_no_name_and_no_error_is_more_than_text(where):
    """G3."""
    one = status()
    evil = status(
        submitter=EVIL,
        reason=EVIL,
        condition_reason=EVIL,
        error=EVIL,
        chains=(ChainStatus(chain=0, operators=(EVIL, "b"), sinks=(EVIL,), is_source=True),),
        sources=(replace(one.sources[0], source=EVIL, split=EVIL),),
        latency={EVIL: one.latency["files:visible"]},
        latency_hour={EVIL: one.latency_hour["files:visible"]},
        failures=(replace(one.failures[0], operator=EVIL, error=EVIL),),
        takeovers=(replace(one.takeovers[0], leader=EVIL),),
        recoveries=(replace(one.recoveries[0], reason=EVIL),),
        checkpoints=CheckpointsStatus(history=(checkpoint(1, outcome=EVIL, reason=EVIL, missing=(EVIL,)),)),
        options={EVIL: EVIL},
    )
    known = JobFacts(
        evil,
        NOW_MS,
        {1: Reason(EVIL, EVIL, (EVIL,), EVIL)},
        (Reason(EVIL, EVIL, (), EVIL),),
        CommandLine(EVIL, EVIL),
        EVIL,
    )
    made = {"job": render.job_page, "report": render.report, "checkpoint": lambda of: render.checkpoint_page(of, 1)}
    html = str(made[where](known))
    assert "&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html
    assert "><b>" not in html
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", html)
    assert "\\u202edlrow" in html
    svgs(html)


@given(st.text())
def test_invisible_characters_are_written_out_and_others_left_alone(text):
    shown = inert(text)
    assert not re.search("[\u200e\u200f\u202a-\u202e\u2066-\u2069\x00\x1b]", shown)
    if text.isprintable() and text.isascii():
        assert shown == text


@pytest.mark.slow
def test_a_report_stands_alone():
    html = render.report(facts())
    assert "<script" not in html
    assert not re.findall(r'(?:src|href)="(?!data:,"|#)', html)
    assert len(re.findall(r"<tr><td class=\"n\">\d+</td>", html)) >= 100, "all checkpoints, as a table"
    assert 'id="checkpoint-120"' in html


SECRETS = (
    "postgresql://ann:hunter2secret@db/x",
    "password=hunter2secret",
    "{'aws_secret_access_key': 'hunter2secret/x+y'}",
    '"sasl.password": "hunter2secret"',
    "Authorization: Bearer hunter2secretvalue",
    "api-key: hunter2secret,",
    "DB_PASSWORD = 'hunter2secret with blanks'",
    "AKIAHUNTER2SECRETAAA",
    "-----BEGIN RSA PRIVATE KEY-----\nhunter2secret\n-----END RSA PRIVATE KEY-----",
    "deadbeef" * 8,
    "DefaultEndpointsProtocol=https;AccountName=ann;AccountKey=hunter2secret/x+y==;EndpointSuffix=core.windows.net",
    "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=all;SharedAccessKey=hunter2secret=",
    "exit code 1: loader --password hunter2secret --host db",
    "exit code 1: loader --api-key=hunter2secret",
    "exit code 1: loader --secret 'hunter2secret with blanks'",
    "curl -u ann:hunter2secret http://host/x",
    "https://ann.blob.core.windows.net/c/x?sv=2024-01-01&sp=r&sig=hunter2secret%3D",
    "https://b.s3.amazonaws.com/x?X-Amz-Credential=hunter2secret&X-Amz-Signature=hunter2secret",
    "postgresql://ann:p@hunter2secret@db/x",
    "mysql://ann:hunter2secret/more@db:3306/x",
    "ann:hunter2secret@tcp(db:3306)/x",
    "Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=host, Signature=hunter2secret",
    "{'Authorization': 'Token hunter2secret'}",
    "Cookie: session=hunter2secret; other=hunter2secret",
    "env: PGPASSWORD=hunter2secret LANG=C",
    "env: DB_PASS=hunter2secret",
    "env: REDISCLI_AUTH=hunter2secret",
    "env: AWS_SECRET_ACCESS_KEY=hunter2secret/x+y",
    "aws configure set aws_secret_access_key hunter2secret/x+yhunter2",
    "{'password': b'hunter2secret'}",
    '{"password": "hunter\\"2hunter2secret"}',
    '"{\\"password\\": \\"hunter2secret\\"}"',
    "[('sasl.password', 'hunter2secret')]",
    "<password>hunter2secret</password>",
    "ALTER USER ann IDENTIFIED BY 'hunter2secret'",
    "CREATE ROLE ann PASSWORD 'hunter2secret'",
    'sasl.jaas.config=org.apache.kafka.PlainLoginModule required username="ann" password="hunter2secret";',
    "ghp_hunter2secrethunter2secret",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_report_masks_what_looks_like_a_secret(secret):
    """J6: secrets of libraries and rows are masked, in any field."""
    one = status()
    known = status(
        error=f"cannot connect: {secret}",
        failures=(replace(one.failures[0], error=f"Traceback\n  {secret}\nKeyError"),),
        commits=replace(one.commits, troubles=(replace(one.commits.troubles[0], error=secret),)),
        options={"spark_conf": secret},
        checkpoints=CheckpointsStatus(history=(checkpoint(9, outcome="declined", reason=secret),)),
        latency={},
    )
    html = render.report(JobFacts(known, NOW_MS, {}))
    assert not re.search("hunter2secret|HUNTER2SECRET|(deadbeef){8}", html)
    assert "******" in html


@pytest.mark.slow
def test_masking_leaves_what_is_no_secret():
    text = (
        "checkpoint 12 of /data/x at http://host:80/a?b=c: KeyError: 'price' in slot 1; key: ('ann', 3); author: bob; "
        "barrier-runtime status job --token-file daemon.token; at 12:30 compass=4"
    )
    assert masked_text(text) == text
    html = render.report(JobFacts(status(error=text), NOW_MS, {}))
    assert "checkpoint 12 of /data/x at http://host:80/a?b=c: KeyError: &#39;price&#39; in slot 1" in html


def test_masking_leaves_bytes_as_they_are():
    """As text, the packed times of one checkpoint in some ten thousand say `pwd…=`."""
    phases = base64.b64decode("eJxjpwdA==".rjust(12, "A"))
    assert b"pwdA=" in base64.b64encode(phases)
    known = status(checkpoints=CheckpointsStatus(history=(checkpoint(9, phases=phases),)))
    assert masked(known).checkpoints.history[0].phases == phases


def test_the_graph_stands_in_layers_and_ends_for_a_circle():
    def chain(number: int, *inputs: int) -> ChainStatus:
        return ChainStatus(chain=number, operators=(f"op{number}",), inputs=inputs)

    diamond = [chain(0), chain(1, 0), chain(2, 0), chain(3, 1, 2), chain(4, 0, 3)]
    assert [[each.chain for each in layer] for layer in charts.layers(diamond)] == [[0], [1, 2], [3], [4]]
    circle = [chain(0, 1), chain(1, 0), chain(2, 2), chain(3, 99)]
    assert sorted(each.chain for layer in charts.layers(circle) for each in layer) == [0, 1, 2, 3]
    assert charts.graph([], {}) == ""


def test_a_box_without_figures_has_none_and_is_lower():
    known = ChainStatus(chain=0, operators=("a",), is_source=True, busy=0.0, rows_in_per_s=0.0, rows_out_per_s=0.0)
    of_ended = ChainStatus(chain=1, operators=("b",), inputs=(0,))
    one, other = ElementTree.fromstring(charts.graph((known, of_ended), {})).findall("{*}g")
    assert [each.text for each in one.findall("{*}text")] == ["⇤ a", "in 0/s · out 0/s", f"busy 0 % · blocked {ABSENT}"]
    assert [each.text for each in other.findall("{*}text")] == ["b"]


@pytest.mark.slow
def test_a_graph_of_two_hundred_operators_in_a_row_is_made_in_time():
    """Within a second of processor time, also a chain that is as deep as it is long."""
    chains = [
        ChainStatus(chain=number, operators=(f"operator-{number}",), inputs=(number - 1,) if number else ())
        for number in range(2_000)
    ]
    began = time.process_time()
    picture = charts.graph(chains, {})
    assert time.process_time() - began < 1
    assert picture.count('class="edge"') == 1_999


def test_the_colour_of_a_box_says_what_it_mostly_does():
    one = ChainStatus(chain=0, operators=("a",))
    kinds = [(None, None), (0.1, 0.0), (0.6, 0.0), (0.9, 0.1), (0.9, 0.7)]
    shown = [charts.heat(replace(one, busy=busy, backpressured=blocked)) for busy, blocked in kinds]
    assert shown == ["calm", "calm", "warm", "hot", "blocked"]


def test_times_that_make_no_sense_are_drawn_within_the_picture():
    """A clock that jumped: an event in the future, an event at zero, a recovery that ends before it began."""
    one = status()
    odd = status(
        recoveries=(replace(one.recoveries[0], started_ms=NOW_MS, running_ms=NOW_MS - 10_000), one.recoveries[1]),
        takeovers=(replace(one.takeovers[0], at_ms=NOW_MS + 10**12),),
        failures=(replace(one.failures[0], at_ms=0),),
    )
    picture = timeline(odd, job_view.events(odd), NOW_MS)
    drawn = [float(x) for x in re.findall(r'(?:x=|d=")"?M?([\d.]+)', picture)]
    assert len(drawn) >= len(job_view.events(odd))
    assert all(0 <= x <= 1_000 for x in drawn)
    assert not re.search(r'(?:width|height|x)="-', picture)


def test_minutes_without_rows_are_gaps():
    points = list(status().latency_hour["files:visible"])
    points[30] = replace(points[30], count=0)
    picture = charts.latencies(points, "files:visible")
    line = re.search(r'class="l-p50" d="([^"]*)"', picture)
    assert line is not None
    assert line[1].count("M") == 2
    assert charts.latencies([replace(each, count=0) for each in points], "x") == ""


def test_labels_of_latencies_fit_and_a_single_minute_is_seen():
    point = replace(status().latency_hour["files:visible"][0], p50=12_000.0, p99=110_000.0, p999=110_000.0, max=120_000)
    picture = charts.latencies([point], "files:visible")
    assert [each.text for each in svgs(picture)[0].iter("text")][:4] == ["10 s", "20 s", "50 s", "100 s"]
    wide = charts.latencies([replace(point, p50=0.2)], "files:visible")
    assert [each.text for each in svgs(wide)[0].iter("text")][:3] == ["1 ms", "10 ms", "100 ms"]
    assert picture.count(' point" d="') == 4
    bars = charts.distribution(status().latency["files:visible"], "files:visible")
    (last,) = [each for each in svgs(bars)[0].iter("text") if each.text == "more"]
    assert last.get("text-anchor") == "end"


def test_bars_of_checkpoints_have_labels_at_the_newest_end_too():
    """For narrow screens, where the left end is scrolled away."""
    drawn = svgs(strip(status().checkpoints.history, ""))[0]
    at_end = [each.text for each in drawn.iter("text") if "at-end" in (each.get("class") or "")]
    left = [each.text for each in drawn.iter("text") if each.get("class") == "axis"]
    assert at_end
    assert left[: 1 + len(at_end)] == ["0", *at_end]


def test_minutes_before_a_clock_was_set_back_are_drawn_within_the_picture():
    """The predecessor's clock was ahead: each line runs from left to right, within the picture."""
    points = list(status().latency_hour["files:visible"])
    ahead = [replace(each, at_ms=each.at_ms + 7_200_000) for each in points[:20]] + points[20:]
    picture = charts.latencies(ahead, "files:visible")
    line = re.search(r'class="l-p50" d="([^"]*)"', picture)
    assert line is not None
    drawn = [float(x) for x in re.findall(r"[ML](-?[\d.]+) ", line[1])]
    assert len(drawn) == len(points)
    assert drawn == sorted(drawn)
    assert 0 <= drawn[0] <= drawn[-1] <= 1_000


def large(slots: int = 500) -> JobStatus:
    """All that may be long is: errors of the length that slots tell, in every subtask and every checkpoint."""
    one = status()
    every = tuple(replace(one.slots[0], slot=n, uuid=f"u{n}", host=f"worker-{n}.example.com") for n in range(slots))
    through = {f"files/{n}": 149 for n in range(slots)}
    troubles = tuple(CommitTrouble(f"files/{n}", 147, 3, "disk full " * 400) for n in range(slots))
    failed = tuple(
        checkpoint(n, outcome="declined", reason="R" * 4_000, subtasks=(), missing=tuple(f"1/{k}" for k in range(64)))
        for n in range(50, 150)
    )
    return replace(
        one,
        parallelism=slots,
        slots=(*every[:-1], replace(every[-1], state="opening")),
        commits=CommitsStatus(through, troubles[-1:]),
        checkpoints=replace(one.checkpoints, history=failed),
        failures=tuple(replace(one.failures[0], at_ms=NOW_MS - n, error="T" * 4_000) for n in range(20)),
        error="Z" * 100_000,
        reason="Z" * 100_000,
        condition_reason="Z" * 100_000,
        outcome="failed",
        phase="failed",
    )


def test_the_first_view_of_a_large_job_is_small_and_has_what_is_worth_a_look():
    html = job_page(explained(large(), NOW_MS))
    assert len(html.encode()) + len(static_file("page.css")) + len(static_file("page.js")) <= 150_000
    slots = re.findall(r"<td>(\d+)</td><td><bdi>worker-", html)
    assert len(slots) == 50
    assert slots[0] == "499", "the one that does not run"
    assert "450 more run" in html
    assert re.findall(r"<bdi>files/(\d+)</bdi>", html)[0] == "499"
    assert "450 more are no worse" in html
    assert "17 older ones" in html


@pytest.mark.slow
def test_the_report_of_a_large_job_has_all_of_it():
    html = report(explained(large(), NOW_MS))
    assert html.count("<bdi>worker-") == 500
    assert len(re.findall(r"<bdi>files/\d+</bdi>", html)) == 500
    assert html.count("T" * 4_000) == 20
    assert "Z" * 100_000 in html
    assert "older ones" not in html


def test_subtasks_longer_than_their_ack_are_cut_at_it():
    one = checkpoint(1)
    long = replace(one.subtasks[0], async_ms=1e9)
    picture = subtasks(replace(one, subtasks=(long,)), {1: "a" * 200})
    ends = [float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', picture)]
    assert max(ends) <= 1_000
    assert checkpoint_chart.subtasks(replace(one, subtasks=()), {}) == ""


def test_the_figures_of_a_tick_have_a_bound():
    """8 MB of an error are not sent once a second: the page's route cuts what `live` gives."""
    from barrier_runtime.coordinator.server.web import pages

    assert (
        sum(
            min(pages._REASON_CHARACTERS, len(text))
            for text in live(status(condition_reason="x" * 8_000_000), NOW_MS).values()
        )
        < 2_000
    )


def hour(rate: float | None = 7_000.0, lag_ms: float | None = 2_500.0) -> tuple[TrendPoint, ...]:
    return tuple(TrendPoint(NOW_MS - 10_000 * (360 - n), rate, lag_ms, None) for n in range(361) if not 100 < n < 200)


def test_the_last_hour_is_drawn_with_gaps_and_round_numbers():
    charts_of_hour = hour_charts(status(), hour(), NOW_MS)
    assert [(each.title, each.now) for each in charts_of_hour] == [
        ("Rate", "7,000/s"),
        ("Watermark lag", "2.5 s"),
        ("Latency, slowest sink", "30 ms"),
    ]
    labels = [[each.text for each in svgs(one.chart)[0].iter("text")][:4] for one in charts_of_hour]
    assert labels == [["0", "5k", "10k", "13:30"], ["0", "1 s", "2 s", "3 s"], ["0", "10 ms", "20 ms", "30 ms"]]
    lines = [each.get("d", "") for each in svgs(charts_of_hour[0].chart)[0].iter("path")]
    assert len([d for d in lines if d.startswith("M") and "L" in d and "V" not in d]) == 2, "a line before and after"
    assert all(len(one.chart) < 8_000 for one in charts_of_hour)


def test_replayed_data_have_a_dash_instead_of_a_lag_of_years():
    old = 4_941 * 86_400_000
    lagging = hour_charts(status(), hour(lag_ms=float(old)), NOW_MS)[1]
    assert (lagging.now, lagging.chart, lagging.empty) == (ABSENT, "", "Replayed data: no lag is shown")
    assert hour_charts(status(), hour(), NOW_MS)[1].empty == "No figures yet"
    replayed = status(sources=(replace(status().sources[0], lag_ms=old),))
    assert live(replayed, NOW_MS)["lag"] == ABSENT
    page = job_page(facts(replayed))
    assert "4941" not in page
    assert "watermark behind by" not in page
    assert "watermark behind by" in job_page(facts())


def test_an_hour_of_nothing_is_no_chart():
    assert [each.chart for each in hour_charts(empty(), (), NOW_MS)] == ["", "", ""]


@given(st.floats(0.001, 1e15), st.integers(1, 6))
def test_ticks_are_few_round_and_reach_the_highest_figure(highest, most):
    for ticks in (count_ticks(highest, most), duration_ticks(highest, most)):
        assert ticks[0] == 0
        assert ticks[-1] >= highest * 0.999
        assert len(ticks) <= most + 1


@given(st.integers(1, 10**14), st.integers(0, 10**13), st.integers(2, 8))
def test_times_on_an_axis_are_few_and_within(first, span, most):
    times = [at_ms for at_ms, _ in time_ticks(first, first + span, most)]
    assert len(times) <= most + 1
    assert all(first <= at_ms <= first + span for at_ms in times)


def test_edges_have_the_rows_that_are_known_of_them():
    def chain(number: int, rows_in: float | None, rows_out: float | None, *inputs: int) -> ChainStatus:
        operators = (f"op{number}",)
        return ChainStatus(
            chain=number, operators=operators, inputs=inputs, rows_in_per_s=rows_in, rows_out_per_s=rows_out
        )

    chains = [chain(0, 9.0, 9.0), chain(1, 6.0, 4.0, 0), chain(2, 7.0, None, 0, 1), chain(3, None, None, 2, 99)]
    assert charts.edge_rates(chains) == {(0, 1): 6.0, (0, 2): 3.0, (1, 2): 4.0, (2, 3): None}
    assert ">6/s</text>" in charts.graph(chains, {})


def test_late_and_skipped_rows_are_shown_with_their_step():
    slots = tuple(
        replace(each, metrics={"count.late_rows": 12.0, "parse.skipped_rows": 3.0, "a.b.late_left_rows": 1.0})
        for each in status().slots
    )
    of = status(slots=slots)
    assert job_view.dropped(of) == [
        ("a.b", "left rows too late for a join: dropped", "2"),
        ("count", "too late for a window: dropped", "24"),
        ("parse", "skipped, because the function raised", "6"),
    ]
    assert (live(of, NOW_MS)["late"], live(of, NOW_MS)["skipped"]) == ("26", "6")
    assert "24 late rows" in job_page(facts(of))
    assert "Rows that results lack" not in job_page(facts())


def test_changes_under_way_and_done_are_told_to_those_who_look():
    saved = replace(status().savepoints[0], bytes=1_234_000)
    told = live(status(savepoints=(saved,)), NOW_MS)
    assert told["done"].startswith("Savepoint of checkpoint 145: done at ")
    assert "1.2 MB in s3://bucket/s" in told["done"]
    assert told["doing"] == ""
    hangs = RescaleStatus(id="r", before=2, parallelism=3, state="starting", asked_ms=NOW_MS - 40_000)
    assert live(status(rescales=(hangs,)), NOW_MS)["doing"] == "rescale 2 → 3 slots: starting, for 40 s"
    failed = replace(hangs, state="failed", ended_ms=NOW_MS, error="no core came")
    assert "failed" in live(status(rescales=(failed,)), NOW_MS)["done"]
    assert "no core came" in live(status(rescales=(failed,)), NOW_MS)["done"]


def test_a_step_has_the_work_of_its_subtasks_and_a_wide_job_some_of_them():
    work = [SubtaskWork(slot, 10.0 * slot, None, 0.5, 0.0, 7) for slot in range(256)]
    html = render.step_page(facts(), status().chains[1], work)
    assert html.count("<svg class=") == SUBTASKS_LISTED
    assert f"{256 - SUBTASKS_LISTED} more slots" in html
    assert html.index("2,550") < html.index("2,540"), "the highest rate is first"
    assert not re.search(r"<td class=\"n\">55</td><td><svg", html), "the lowest rates are left out"
    assert re.search(r"<td class=\"n\">56</td><td><svg", html)
    assert len(html.encode()) <= 100_000
    assert "No slot is connected" in render.step_page(facts(), status().chains[0], [])


def test_all_failures_have_a_page():
    html = render.failures_page(facts(large()))
    assert html.count("T" * 4_000) == 20
    assert "No failures recorded" in render.failures_page(facts(empty()))
