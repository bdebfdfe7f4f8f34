"""The example `fraud` without servers: the flow in one process and the function by itself against plain Python, and the
example's comparison against wrong results.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.testing import ConnectedHarness
from examples.fraud import Bad, Guard, Judged, Payment, Report, Rule, guarded
from examples.fraud_data import AlarmsTold, Answer, compare, end_ms, holder_of, payments_of, rules_of

COUNT = 1_500
Result = tuple[list[dict[str, Any]], list[dict[str, Any]], AlarmsTold]


@pytest.fixture(scope="module")
def answer() -> Answer:
    return payments_of(COUNT)[1]


def right_result(answer: Answer) -> Result:
    """A result that the job may give: a confirmed alarm was emitted as unconfirmed and withdrawn."""
    judged = [
        {"id": number, "card": card, "spent": spent, "limit": limit, "alarm": alarm}
        for number, (card, spent, limit, alarm) in answer.judged.items()
    ]
    bad = [{"id": number, "card": card, "cents": cents} for number, (card, cents) in answer.bad.items()]
    told = AlarmsTold()
    late = min(answer.confirmed)
    for number, (card, spent) in answer.alarms.items():
        whats = ["alarm"]
        if number not in answer.confirmed or number == late:
            whats.append("unconfirmed")
        if number == late:
            whats.append("withdrawn")
        told.rows[number] = [
            {"id": number, "card": card, "what": what, "spent": 0 if what == "withdrawn" else spent}
            | {"holder": holder_of(card)}
            for what in whats
        ]
    return judged, bad, told


def test_the_flow_judges_as_plain_python_does() -> None:
    rows, answer = payments_of(COUNT)
    payments = [{"confirms": None, **row} for row in rows]
    payments.append({"id": -1, "card": "", "cents": 0, "at": end_ms(COUNT), "confirms": None})
    rules = [*rules_of(COUNT), {"at": end_ms(COUNT), "limit": None}]
    flow = Dataflow("fraud")
    every = 2  # splits, dealt out as partitions of a topic are

    def dealt(index: int, of: int) -> Iterator[dict[str, Any]]:
        return iter(payments[index::of])

    stream = flow.from_iterator("payments", dealt, schema=Payment, splits=every, event_time="at")
    ruled = flow.from_iterator("rules", lambda index, of: iter(rules), schema=Rule, splits=1, event_time="at")
    judged, alarms, bad = sinks = CollectSink(), CollectSink(), CollectSink()
    for number, branch in enumerate(guarded(stream, ruled)):
        branch.sink(f"out-{number}", sinks[number])
    flow.run_local(parallelism=2)
    told = [row for row in alarms.rows() if row["what"] == "alarm"]
    assert {row["id"]: (row["card"], row["spent"]) for row in told} == answer.alarms
    assert len(told) == len(answer.alarms)
    expected, expected_bad, right = right_result(answer)
    assert sorted(judged.rows(), key=lambda row: row["id"]) == expected
    assert sorted(bad.rows(), key=lambda row: row["id"]) == expected_bad
    assert compare(answer, judged.rows(), bad.rows(), right).good


def test_alarm_is_emitted_if_unconfirmed_in_time_and_withdrawn_on_late_confirmation() -> None:
    def paid(number: int, cents: int, at: int, confirms: int | None = None) -> Payment:
        return Payment(number, "a", cents, at, confirms)

    with ConnectedHarness(
        Guard,
        keys={"payments": "card"},
        broadcast=["rules"],
        rows={"payments": Payment, "rules": Rule},
        event_time="at",
        schema=Judged,
        side={"alarms": Report, "bad": Bad},
        wall_ms=1_000,
    ) as harness:
        harness.push("rules", Rule(0, 100))
        harness.push("payments", paid(1, 101, 10), paid(2, -5, 20), paid(3, 50, 400_000), paid(4, 60, 400_010))
        judged = harness.watermark(500_000)
        assert [(row.id, row.spent, row.alarm) for row in judged] == [
            (1, 101, True),
            (3, 50, False),
            (4, 110, True),
        ]
        assert [row.id for row in harness.side("bad")] == [2]
        harness.push("payments", paid(5, 0, 500_001, confirms=1))
        harness.watermark(500_010)
        assert [(row.id, row.what) for row in harness.side("alarms")] == [(1, "alarm"), (4, "alarm")]
        harness.wall(3_000)
        assert [(row.id, row.what) for row in harness.side("alarms")] == [(4, "unconfirmed")]
        harness.push("payments", paid(6, 0, 500_011, confirms=4))
        harness.watermark(500_020)
        assert [(row.id, row.what) for row in harness.side("alarms")] == [(4, "withdrawn")]


def test_the_comparison_takes_a_right_result_and_sees_every_kind_of_wrong_one(answer: Answer) -> None:
    judged, bad, told = right_result(answer)
    assert compare(answer, judged, bad, told).good
    assert told.settled(answer) == len(answer.alarms)
    assert compare(answer, judged[1:], bad, told).lost == 1
    assert compare(answer, [*judged, judged[0]], bad, told).duplicated == 1
    assert compare(answer, [{**judged[0], "spent": 1}, *judged[1:]], bad, told).mismatched == 1
    assert compare(answer, judged, bad[1:], told).lost == 1
    assert compare(answer, [*judged, {**judged[0], "id": -7}], bad, told).mismatched == 1

    unconfirmed = min(answer.alarms.keys() - answer.confirmed)
    late = min(answer.confirmed)

    def changed(number: int, rows: list[dict[str, Any]]) -> AlarmsTold:
        other = copy.deepcopy(told)
        other.rows[number] = rows
        return other

    rows = told.rows[unconfirmed]
    assert compare(answer, judged, bad, changed(unconfirmed, rows[:1])).lost == 1
    assert changed(unconfirmed, rows[:1]).settled(answer) == len(answer.alarms) - 1
    assert compare(answer, judged, bad, changed(unconfirmed, [*rows, rows[1]])).duplicated == 1
    assert compare(answer, judged, bad, changed(unconfirmed, [rows[0], {**rows[1], "holder": ""}])).mismatched == 1
    assert compare(answer, judged, bad, changed(late, told.rows[late][:2])).lost == 1
    assert compare(answer, judged, bad, changed(late, [*told.rows[late], told.rows[late][2]])).duplicated == 1
    assert compare(answer, judged, bad, changed(-7, rows)).mismatched == 1
