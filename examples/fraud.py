"""Card payments checked by rules that change while the job runs; alarms with card holders.

    KAFKA=… POSTGRES=… barrier-runtime run examples/fraud.py:flow --master 'local[4,16]' --checkpoints build/checkpoints

A card's payments are checked in the order of their own times, by the rule that was valid at that time: a payment waits
in state until event time reaches the payment, so that every older payment and rule has arrived. Judgements depend
neither on a clock nor on arrival, and plain Python computes the same (`fraud_data.answer`).

An alarm that the card's holder does not confirm within two seconds of the wall clock is reported as unconfirmed. The
report may depend on the clock, even on a kill; the result must not: if the confirmation comes later, the report is
withdrawn. In the end, unconfirmed minus withdrawn are exactly the alarms that nobody confirms, and each is reported
once.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow.compute as pc

from barrier_runtime import (
    TTL,
    BroadcastState,
    Dataflow,
    KafkaSink,
    MapState,
    ParquetSink,
    ProcessContext,
    Retry,
    Stream,
    TypedStream,
    ValueState,
    connect,
)

SPREE = timedelta(minutes=5)  # a card that is silent for this time begins a new spree
CONFIRM_WITHIN = timedelta(seconds=2)


class Payment(msgspec.Struct, frozen=True):
    id: int
    card: str
    cents: int
    at: int  # ms
    confirms: int | None  # id of an alarm


class Rule(msgspec.Struct, frozen=True):
    at: int  # valid from this time, in ms
    limit: int | None  # cents within a spree; None only advances time


class Judged(msgspec.Struct, frozen=True):
    id: int
    card: str
    spent: int
    limit: int
    alarm: bool


class Report(msgspec.Struct, frozen=True):
    id: int
    card: str
    what: str  # alarm, unconfirmed, withdrawn
    spent: int


class Bad(msgspec.Struct, frozen=True):
    id: int
    card: str
    cents: int


class Waiting(msgspec.Struct, frozen=True):
    id: int
    cents: int
    confirms: int | None


class Spree(msgspec.Struct, frozen=True):
    spent: int
    alarmed: bool


class Alarm(msgspec.Struct, frozen=True):
    spent: int
    due_ms: int  # wall clock


class Guard:
    limits = BroadcastState(int, int)  # by start of validity
    waiting = MapState(int, Waiting)  # by time; a card pays at most once per millisecond
    spree = ValueState(Spree, ttl=TTL(SPREE, clock="event"))
    alarms = MapState(int, Alarm)  # unconfirmed alarms, by payment

    def on_rules(self, rule: Rule, ctx: ProcessContext) -> None:
        if rule.limit is not None:
            self.limits[rule.at] = rule.limit

    def on_payments(self, card: str, payment: Payment, ctx: ProcessContext) -> None:
        if payment.confirms is None and payment.cents <= 0:
            ctx.emit("bad", Bad(payment.id, card, payment.cents))
            return
        self.waiting[payment.at] = Waiting(payment.id, payment.cents, payment.confirms)
        ctx.timers.register(payment.at)

    def on_timer(self, card: str, at_ms: int, ctx: ProcessContext) -> Iterator[Judged]:
        row = self.waiting.pop(at_ms)
        if row.confirms is not None:
            self._confirmed(card, row.confirms, ctx)
            return
        before = self.spree.value or Spree(0, False)
        spent = before.spent + row.cents
        limit = self.limits[max(since for since in self.limits if since <= at_ms)]
        alarm = spent > limit and not before.alarmed
        self.spree.value = Spree(spent, before.alarmed or alarm)
        if alarm:
            self.alarms[row.id] = Alarm(spent, ctx.wall_timers.after(CONFIRM_WITHIN))
            ctx.emit("alarms", Report(row.id, card, "alarm", spent))
        yield Judged(row.id, card, spent, limit, alarm)

    def _confirmed(self, card: str, alarm: int, ctx: ProcessContext) -> None:
        if self.alarms.pop(alarm, None) is None:  # too late: the alarm was reported
            ctx.emit("alarms", Report(alarm, card, "withdrawn", 0))

    def on_wall_timer(self, card: str, due_ms: int, ctx: ProcessContext) -> None:
        for number, alarm in list(self.alarms.items()):
            if alarm.due_ms <= due_ms:
                del self.alarms[number]
                ctx.emit("alarms", Report(number, card, "unconfirmed", alarm.spent))


class Holders:
    """Holders of cards, in PostgreSQL.

    Each request opens a connection: the database may have restarted since the last request."""

    def __init__(self, database: str) -> None:
        self._database = database

    def fetch_many(self, cards: Sequence[str]) -> dict[str, dict[str, Any]]:
        import psycopg

        with psycopg.connect(self._database, connect_timeout=2) as connection:
            found = connection.execute("SELECT card, holder FROM holders WHERE card = any(%s)", [list(cards)])
            return {card: {"holder": holder} for card, holder in found}


def guarded(payments: TypedStream[Payment], rules: TypedStream[Rule]) -> tuple[Stream, Stream, Stream]:
    """Judged payments, alarms with their reports, bad rows."""
    cards = payments.filter(pc.field("card") != "").key_by("card")  # rows without a card only advance time
    streams = connect(payments=cards, rules=rules.broadcast())
    side = {"alarms": Report, "bad": Bad}
    judged, alarms, bad = streams.process("guard", Guard, schema=Judged, side=side, event_time="at")
    return judged, alarms, bad


def build(bootstrap: str, database: str, output: str) -> Dataflow:
    """Existing topics `payments`, `rules` (JSON), table `holders` to topic `alarms` and Parquet files."""
    flow = Dataflow("fraud")
    topics: dict[str, Any] = {"group": "fraud", "key": None, "value": "json", "metadata": [], "event_time": "at"}
    topics["idle_timeout"] = timedelta(days=1)  # waiting is right: both topics have rows that only advance time
    payments = flow.read_kafka("payments", bootstrap, "payments", schema=Payment, **topics)
    rules = flow.read_kafka("rules", bootstrap, "rules", schema=Rule, **topics)
    judged, alarms, bad = guarded(payments, rules)
    judged.sink("judged", ParquetSink(f"{output}/judged"))
    bad.sink("bad", ParquetSink(f"{output}/bad"))
    retry = Retry(20, backoff=timedelta(milliseconds=100))
    told = alarms.lookup("holder", Holders(database), key="card", schema={"holder": str}, retry=retry)
    told.sink("alarms", KafkaSink(bootstrap, "alarms", key="card"))
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line."""
    if name != "flow":
        raise AttributeError(name)
    return build(os.environ["KAFKA"], os.environ["POSTGRES"], os.environ.get("OUTPUT", "build/output"))
