"""Payments of the example `fraud`, from a seed, and the right answer, computed by plain Python."""

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from examples.fraud import SPREE
from examples.run_check import Verdict

FIRST_MS = 1_767_225_600_000
_STEP_MS = 10  # between two payments
_CONFIRMED_AFTER_MS = 2_000 * _STEP_MS + 5  # no payment has such a time
_RULES = 10
_TICKS = 400  # rows of the rules' topic: rows without a limit only advance time
_SPREE_MS = round(SPREE.total_seconds() * 1_000)


@dataclass
class Answer:
    """Right answer, by payment. `alarms`: spent cents; `confirmed`: alarms that their holders confirm."""

    judged: dict[int, tuple[str, int, int, bool]] = field(default_factory=dict)
    bad: dict[int, tuple[str, int]] = field(default_factory=dict)
    alarms: dict[int, tuple[str, int]] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)


def holder_of(card: str) -> str:
    return f"holder of {card}"


def cards_of(count: int) -> list[str]:
    """Cards of `count` payments."""
    return [f"card-{number}" for number in range(max(10, count // 50))]


def end_ms(count: int) -> int:
    """End of the event time of `count` payments."""
    return FIRST_MS + count * _STEP_MS + 3_600_000


def rules_of(count: int) -> list[dict[str, int | None]]:
    """Rules for `count` payments, in the order of time."""
    draw = random.Random("rules")
    every = _TICKS // _RULES
    limits = [draw.randrange(200_000, 400_000) if tick % every == 0 else None for tick in range(_TICKS)]
    return [{"at": FIRST_MS + count * _STEP_MS * tick // _TICKS, "limit": limit} for tick, limit in enumerate(limits)]


def payments_of(count: int) -> tuple[list[dict[str, Any]], Answer]:
    """Payments in the order of time, with the holders' confirmations in between; and the answer."""
    draw = random.Random("payments")
    cards = cards_of(count)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        cents = -1 if draw.random() < 0.001 else int(draw.random() * 100_000) + 1
        at = FIRST_MS + number * _STEP_MS
        rows.append({"id": number, "card": cards[int(draw.random() * len(cards))], "cents": cents, "at": at})
    answer = _answer(rows, rules_of(count))
    for number in answer.alarms:
        if draw.random() < 0.5:
            answer.confirmed.add(number)
            at = rows[number]["at"] + _CONFIRMED_AFTER_MS
            rows.append({"id": count + number, "card": rows[number]["card"], "cents": 0, "at": at, "confirms": number})
    rows.sort(key=lambda row: row["at"])
    return rows, answer


def _answer(payments: Iterable[dict[str, Any]], rules: list[dict[str, int | None]]) -> Answer:
    answer = Answer()
    limits = [(rule["at"], rule["limit"]) for rule in rules if rule["limit"] is not None]
    sprees: dict[str, tuple[int, int, bool]] = {}  # card -> time of the last payment, spent, alarmed
    for row in payments:
        number, card, at = row["id"], row["card"], row["at"]
        if row["cents"] <= 0:
            answer.bad[number] = (card, row["cents"])
            continue
        last_ms, spent, alarmed = sprees.get(card, (at, 0, False))
        if at >= last_ms + _SPREE_MS:
            spent, alarmed = 0, False
        spent += row["cents"]
        limit = [each for since, each in limits if since is not None and since <= at][-1]
        assert limit is not None
        alarm = spent > limit and not alarmed
        sprees[card] = (at, spent, alarmed or alarm)
        answer.judged[number] = (card, spent, limit, alarm)
        if alarm:
            answer.alarms[number] = (card, spent)
    return answer


# ---------------------------------------------------------------- rows of the job


@dataclass
class AlarmsTold:
    """Rows in the topic of alarms, by alarm."""

    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, values: Iterable[bytes]) -> None:
        for value in values:
            row = json.loads(value)
            self.rows.setdefault(row["id"], []).append(row)

    def settled(self, answer: Answer) -> int:
        """Number of alarms with all their rows."""
        return sum(self._is_settled(number, number in answer.confirmed) for number in answer.alarms)

    def _is_settled(self, number: int, confirmed: bool) -> bool:
        told = Counter(row["what"] for row in self.rows.get(number, ()))
        return told["alarm"] > 0 and told["unconfirmed"] - told["withdrawn"] == (0 if confirmed else 1)


def compare(
    answer: Answer, judged: Iterable[dict[str, Any]], bad: Iterable[dict[str, Any]], told: AlarmsTold
) -> Verdict:
    """Compares every row of the result with the answer, values and number of occurrences."""
    verdict = Verdict(len(answer.judged), len(answer.judged) + len(answer.bad))
    _compare_rows(verdict, "payment", answer.judged, judged, ("card", "spent", "limit", "alarm"))
    _compare_rows(verdict, "bad payment", answer.bad, bad, ("card", "cents"))
    for number in told.rows.keys() - answer.alarms.keys():
        verdict.note("mismatched", f"alarm {number}: {told.rows[number]}, expected none")
    for number, (card, spent) in answer.alarms.items():
        rows = told.rows.get(number, [])
        times = Counter(row["what"] for row in rows)
        confirmed = number in answer.confirmed
        withdrawn = times["unconfirmed"] if confirmed else 0
        least = {"alarm": 1, "unconfirmed": 0 if confirmed else 1, "withdrawn": withdrawn}
        most = {"alarm": 1, "unconfirmed": 1, "withdrawn": withdrawn}
        for what in least:
            for _ in range(least[what] - times[what]):
                verdict.note("lost", f"{what} of {number}: {rows}")
            for _ in range(times[what] - most[what]):
                verdict.note("duplicated", f"{what} of {number}: {rows}")
        for row in rows:
            right = (number, card, 0 if row["what"] == "withdrawn" else spent, holder_of(card))
            if (row["id"], row["card"], row["spent"], row["holder"]) != right or row["what"] not in least:
                verdict.note("mismatched", f"{row}, expected {right}")
    return verdict


def _compare_rows(
    verdict: Verdict,
    what: str,
    truth: dict[int, Any],
    found: Iterable[dict[str, Any]],
    columns: tuple[str, ...],
) -> None:
    times: Counter[int] = Counter()
    for row in found:
        number = row["id"]
        times[number] += 1
        if times[number] > 1:
            verdict.note("duplicated", f"{what} {number}")
        values = tuple(row[column] for column in columns)
        if truth.get(number) != values:
            verdict.note("mismatched", f"{what} {number} = {values}, expected {truth.get(number)}")
    for number in truth.keys() - times.keys():
        verdict.note("lost", f"{what} {number} = {truth[number]}")
