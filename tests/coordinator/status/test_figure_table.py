"""Metrics of `/metrics`: documented names, few series; the shipped dashboard and alerts use only these names."""

import json
import re
from collections import Counter as Tally
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml
from coordinator_world import options, spec, started
from prometheus_client.parser import text_string_to_metric_families
from test_rest import GOOD, body, served

from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowUpload
from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.page.render import explained, report
from barrier_runtime.coordinator.server.telemetry.opentelemetry import named
from barrier_runtime.coordinator.server.telemetry.prometheus import exposition
from barrier_runtime.coordinator.status.figure_table import (
    EXPOSED,
    FORGOTTEN_MS,
    PER_JOB,
    PER_OPERATOR,
    PER_SLOT,
    is_exported,
    samples,
)
from barrier_runtime.coordinator.status.status import (
    ChainStatus,
    CommitTrouble,
    JobStatus,
    LatencyStatus,
    SilentLink,
    SlotStatus,
    SourceStatus,
    SparesStatus,
)
from barrier_runtime.coordinator.wire.messages import Heartbeat, Trigger
from barrier_runtime.state.store.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[3]
SNAPSHOT = Path(__file__).with_name("exposition.txt")  # written by this file as a program
SHIPPED = ROOT / "examples" / "monitoring"
PROMISED = {
    "barrier_checkpoint_duration_seconds",
    "barrier_checkpoints_total",
    "barrier_checkpoint_age_seconds",
    "barrier_rows_total",
    "barrier_watermark_lag_seconds",
    "barrier_source_backlog_rows",
    "barrier_latency_seconds",
    "barrier_busy_ratio",
    "barrier_backpressured_ratio",
    "barrier_late_rows_total",
    "barrier_transactions_pending",
    "barrier_transaction_oldest_seconds",
    "barrier_recoveries_total",
    "barrier_state_bytes",
}
LABELS = {"job", "operator", "sink", "slot", "cause", "result", "direction", "kind", "quantile", "metric", "peer"}


def told(status: JobStatus) -> dict[str, dict[tuple[str, ...], float]]:
    """Returns samples by name, as a scraper reads them."""
    text = exposition([status], status.at_ms).decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for name, value in sample.labels.items() if name != "job")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def lived() -> JobStatus:
    """Returns the status of a job with a checkpoint whose sink has not committed in one slot."""
    coordinator, a, b = started(MemoryStore())
    coordinator.later(500)
    coordinator.trigger()
    coordinator.later(200)
    for slot in (a, b):
        slot.ack(slot.last(Trigger).checkpoint)
    coordinator.settle()
    a.commit(1)
    for second in range(3):
        coordinator.later(1_000)
        for slot in (a, b):
            work = {"numbers.work_s": 0.5 * second, "numbers.blocked_s": 0.0, "numbers.held_s": 0.0}
            counts = {
                "numbers.rows_in": 100.0 * second,
                "count.late_rows": 3.0,
                "count.user_odd": 2.0,
                "rss_bytes": 5e6,
            }
            slot.say(Heartbeat(slot.token, {**work, **counts}, sent_at_ms=coordinator.now_ms))
    return coordinator.status


def test_the_promised_names_are_there_and_no_more_than_30_families() -> None:
    names = [family.exposed for family in EXPOSED]
    assert set(names) >= PROMISED
    assert len(names) <= 30
    assert [name for name, times in Tally(names).items() if times > 1] == []
    assert {label for family in EXPOSED for label in family.labels} <= LABELS
    assert all(family.exposed.endswith("_total") == (family.kind == "counter") for family in EXPOSED)


def test_pairs_of_slots_that_do_not_hear_each_other_are_a_trouble_with_a_number() -> None:
    links = (
        SilentLink(1, "worker-b", 0, "worker-a", 9_000, 1),
        SilentLink(0, "worker-a", 1, "worker-b", 9_000, 1),
        SilentLink(0, "worker-a", 2, "worker-c", 12_000, 1),
    )
    silent = msgspec.structs.replace(lived(), condition="WAITING_NETWORK", silent_links=links)
    assert told(silent)["barrier_job_trouble"] == {("waiting_network",): 1.0, ("silent_links",): 2.0}
    assert ("silent_links",) not in told(lived()).get("barrier_job_trouble", {})
    assert told(silent)["barrier_silent_link_seconds"] == {("2", "0"): 12.0, ("0", "1"): 9.0}
    assert "barrier_silent_link_seconds" not in told(lived())


def test_a_scraper_reads_what_the_job_did() -> None:
    read = told(lived())
    assert read["barrier_job_running"] == {(): 1.0}
    assert read["barrier_checkpoints_total"] == {("completed",): 1.0, ("failed",): 0.0}
    assert read["barrier_checkpoint_duration_seconds_count"] == {(): 1.0}
    assert read["barrier_checkpoint_duration_seconds_sum"] == {(): 0.2}
    assert read["barrier_checkpoint_duration_seconds_bucket"][("0.1",)] == 0.0
    assert read["barrier_checkpoint_duration_seconds_bucket"][("0.25",)] == 1.0
    assert read["barrier_checkpoint_duration_seconds_bucket"][("+Inf",)] == 1.0
    assert read["barrier_checkpoint_age_seconds"] == {(): 3.2}
    assert read["barrier_rows_total"][("in", "numbers")] == 400.0
    assert read["barrier_busy_ratio"] == {("numbers",): 0.5}
    assert read["barrier_late_rows_total"] == {("count",): 6.0}
    assert read["barrier_operator_metric"] == {("user_odd", "count"): 4.0}
    assert read["barrier_transactions_pending"] == {("out",): 1.0}
    assert read["barrier_transaction_oldest_seconds"] == {("out",): 3.0}
    assert read["barrier_slot_memory_bytes"] == {("0",): 5e6, ("1",): 5e6}


def large(operators: int, slots: int) -> JobStatus:
    """Returns a status with the most series: each operator a chain with state, a third of them sinks."""
    names = [f"operator_{number}" for number in range(operators)]
    own = {f"{name}.user_{metric}": 1.0 for name in names for metric in "abcdefghij"}
    late = {f"{name}.late_rows": 1.0 for name in names}
    figures = {**own, **late, "rss_bytes": 1.0, "starved_s": 1.0}
    latency = LatencyStatus(1.0, 2.0, 3.0, 4, 2.5)
    sinks = names[::3]
    base = lived()
    last = msgspec.structs.replace(base.checkpoints.last_completed, state_bytes=dict.fromkeys(names, 5))
    return msgspec.structs.replace(
        base,
        chains=tuple(
            ChainStatus(chain=at, operators=(name,), inputs=(at + 1,), busy=0.5, backpressured=0.1, held=0.1)
            for at, name in enumerate(names)
        ),
        slots=tuple(SlotStatus(slot, "u", 1, "h", 1, "running", 0, figures) for slot in range(slots)),
        sources=(SourceStatus(source=names[-1], watermark_ms=1, lag_ms=5),),
        latency_last_minute={f"{sink}:{kind}": latency for sink in sinks for kind in ("processed", "visible")},
        commits=msgspec.structs.replace(base.commits, through={f"{sink}/0": 0 for sink in sinks}),
        checkpoints=msgspec.structs.replace(base.checkpoints, last_completed=last),
        condition="WAITING_STORE",
    )


@pytest.mark.parametrize(("operators", "slots"), [(1, 1), (3, 4), (30, 16), (200, 64)])
def test_series_are_bounded_by_operators_and_slots(operators: int, slots: int) -> None:
    status = large(operators, slots)
    text = exposition([status], status.at_ms).decode()
    series = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(series) == len(set(series))
    assert len(series) <= PER_JOB + PER_OPERATOR * operators + PER_SLOT * slots
    assert (PER_JOB, PER_OPERATOR, PER_SLOT) == (40, 12, 6)


@pytest.mark.slow
def test_a_thousand_operators_in_64_slots_fit_into_a_megabyte() -> None:
    status = large(1_000, 64)
    assert len(exposition([status], status.at_ms)) <= 1_000_000


def test_names_with_quotes_and_line_ends_do_not_break_the_text() -> None:
    name = 'a"b\\c\nd'
    chains = (ChainStatus(chain=0, operators=(name,), busy=0.25),)
    assert told(msgspec.structs.replace(lived(), chains=chains))["barrier_busy_ratio"] == {(name,): 0.25}


def test_a_job_that_ended_is_exported_for_an_hour_and_a_replaced_run_not_at_all() -> None:
    ended = msgspec.structs.replace(lived(), outcome="finished", phase="finished", condition_since_ms=1_000)
    assert is_exported(ended, 1_000 + FORGOTTEN_MS - 1)
    assert not is_exported(ended, 1_000 + FORGOTTEN_MS)
    assert not is_exported(msgspec.structs.replace(ended, outcome="fenced"), 1_001)
    assert exposition([ended], 1_000 + FORGOTTEN_MS) == b""


@pytest.mark.parametrize(("outcome", "told_as"), [("finished", None), ("cancelled", None), ("failed", 0.0)])
def test_an_alarm_on_jobs_that_do_not_run_rings_for_no_end_that_was_wished_for(
    outcome: str, told_as: float | None
) -> None:
    ended = msgspec.structs.replace(lived(), outcome=outcome, phase=outcome, condition_since_ms=lived().at_ms)
    assert told(ended).get("barrier_job_running", {}).get(()) == told_as
    assert told(ended)["barrier_checkpoints_total"][("completed",)] == 1.0


def test_every_sample_has_the_labels_of_its_family() -> None:
    for status in (lived(), large(4, 2)):
        told = list(samples(status))
        assert len({family.exposed for family, _, _ in told}) >= len(PROMISED) // 2
        assert [family.exposed for family, labels, _ in told if len(labels) != len(family.labels)] == []


async def test_the_daemon_serves_it_behind_the_token() -> None:
    async with served() as (http, _):
        assert (await http.get("/metrics")).status_code == 401
        await http.put("/jobs/flights", content=body(spec(checkpoints=options())), headers=GOOD)
        answer: httpx.Response = await http.get("/metrics", headers={"Authorization": GOOD["Authorization"]})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert 'barrier_job_running{job="flights"} 0.0' in answer.text


# ---------------------------------------------------------------- text for text


def busy() -> JobStatus:
    """Returns the status of a job with samples of every family."""
    base = lived()
    last = msgspec.structs.replace(base.checkpoints.last_completed, state_bytes={"count": 7_000}, new_bytes=1_200)
    figures = {
        **base.slots[0].metrics,
        "starved_s": 0.25,
        "loop_lag_ms": 40.0,
        "out.transaction_oldest_ms": base.at_ms - 1_000.0,
        "out.transaction_timeout_ms": 60_000.0,
        "count.lookups": 4.0,
    }
    latency = LatencyStatus(1.0, 20.0, 3.0, 4, 2.5)
    return msgspec.structs.replace(
        base,
        slots=(msgspec.structs.replace(base.slots[0], metrics=figures), base.slots[1]),
        missing_slots=(2,),
        silent_links=(SilentLink(0, "worker-a", 1, "worker-b", 9_000, 1),),
        spares=SparesStatus(2, 1, (3,)),
        condition="WAITING_SINK",
        generations=3,
        taken_over=1,
        records=12_345,
        sources=(SourceStatus(source="numbers", watermark_ms=1, lag_ms=1_500),),
        chains=tuple(
            msgspec.structs.replace(
                chain,
                backpressured=0.25,
                held=0.125,
                backlog=90_000 if chain.is_source else None,
                caught_up_in_s=45.0 if chain.is_source else None,
            )
            for chain in base.chains
        ),
        latency_last_minute={"out:processed": latency, "out:visible": latency},
        commits=msgspec.structs.replace(
            base.commits,
            troubles=(CommitTrouble("out/1", 1, 5, "refused", 1_000),),
            slow=(SlowCommit("out", 1, base.at_ms - 3_000),),
        ),
        checkpoints=msgspec.structs.replace(
            base.checkpoints,
            failed=2,
            last_completed=last,
            slow_uploads=(SlowUpload("count", 1, 1, base.at_ms - 2_000),),
        ),
    )


def tiles(status: JobStatus) -> str:
    page = report(explained(status, status.at_ms))
    return page[page.index('<dl class="tiles">') : page.index("</dl>")]


def shown(status: JobStatus) -> str:
    metrics = exposition([status], status.at_ms).decode()
    otel = "".join(f"{family.exposed} {' '.join(named(family))}\n" for family in EXPOSED)
    page = "".join(f"{name}: {text}\n" for name, text in sorted(live(status, status.at_ms).items()))
    return f"{metrics}\n{otel}\n{page}\n{tiles(status)}\n"


def test_metrics_otlp_names_and_page_figures_are_as_promised() -> None:
    text = shown(busy())
    assert all(f"# HELP {family.exposed} " in text for family in EXPOSED)
    assert text == SNAPSHOT.read_text(encoding="utf-8")


# ---------------------------------------------------------------- shipped files


def expressions() -> list[str]:
    dashboard = json.loads((SHIPPED / "grafana-dashboard.json").read_text(encoding="utf-8"))
    rules = yaml.safe_load((SHIPPED / "prometheus-alerts.yml").read_text(encoding="utf-8"))
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return targets + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


NAME = re.compile(r"\bbarrier_\w+")
SELECTOR = re.compile(r"\b(barrier_\w+)\s*\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
PARTS_OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")


def labels_of(name: str) -> set[str]:
    """Returns the labels of the series of that name; empty for unknown names."""
    for family in EXPOSED:
        if family.exposed == name and family.kind != "histogram":
            return {"job", *family.labels}
        if family.kind == "histogram" and name in {f"{family.exposed}{part}" for part in PARTS_OF_A_HISTOGRAM}:
            return {"job", "le"} if name.endswith("_bucket") else {"job"}
    return set()


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_that_is_shipped_names_what_there_is(expression: str) -> None:
    names = set(NAME.findall(expression))
    assert names
    known = {name: labels_of(name) for name in names}
    assert [name for name, labels in known.items() if not labels] == []
    for name, selector in SELECTOR.findall(expression):
        asked = {part.partition("=")[0].strip(" !~") for part in selector.split(",") if part.strip()}
        assert asked <= known[name]
    grouped = {label.strip() for labels in GROUPED.findall(expression) for label in labels.split(",")}
    assert grouped <= set().union(*known.values())
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    counters = {name for name in names if name.endswith(("_total", "_bucket"))}
    rated = {name for name in counters if re.search(rf"\b(rate|increase|changes)\(\s*{name}", expression)}
    assert counters == rated, "a counter is read through rate() or increase()"


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((SHIPPED / "prometheus-alerts.yml").read_text(encoding="utf-8"))
    assert rules["groups"]
    for group in rules["groups"]:
        assert group["rules"]
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert "barrier-runtime " in rule["annotations"]["description"]
            assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= LABELS


if __name__ == "__main__":  # PYTHONPATH=.:tests/coordinator:tests/coordinator/server
    SNAPSHOT.write_text(shown(busy()), encoding="utf-8")
