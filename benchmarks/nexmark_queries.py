"""Nexmark q0 to q5, q7 and q8, each as SQL over one bounded or endless view and in our language.

Joins of two streams are keyed functions here, because the language has no join: both sides go through one stream, keyed
by what they join on. `answer` names the columns that are compared.
"""

import dataclasses
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import ValueState, mean
from barrier_runtime.api.dataflow import Stream
from benchmarks.nexmark import AUCTION, BID, PERSON
from benchmarks.sliding import sliding
from benchmarks.workloads import Workload

_WINDOW_MS = 10_000
_PERSON = f"(SELECT id, name, city, state, `at`, ts, emitted FROM events WHERE kind = {PERSON})"
_AUCTION = f"(SELECT id, seller, category, expires, `at`, ts, emitted FROM events WHERE kind = {AUCTION})"
_BID = f"(SELECT auction, bidder, price, `at`, ts, emitted FROM events WHERE kind = {BID})"
_PLAIN = {name: name for name in ("auction", "bidder", "price", "at", "emitted")}


def _bids(events: Stream) -> Stream:
    return events.filter(pc.field("kind") == BID).select(_PLAIN)


# ---------------------------------------------------------------- q3: sellers in three states


class LocalSellers:
    """q3: the person of a key, and the auctions that came before."""

    person = ValueState(list[str])
    waiting = ValueState(list[int], default_factory=list)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> Any:
        if row["kind"] == PERSON:
            self.person.value = [row["name"], row["city"], row["state"]]
            for auction in self.waiting.value:
                yield self._row(auction, row["emitted"])
            self.waiting.value = []
        elif self.person.value is not None:
            yield self._row(row["id"], row["emitted"])
        else:
            self.waiting.value = [*self.waiting.value, row["id"]]

    def _row(self, auction: int, emitted: int) -> dict[str, Any]:
        name, city, state = self.person.value
        return {"name": name, "city": city, "state": state, "id": auction, "emitted": emitted}


def _q3(events: Stream) -> Stream:
    kind = pc.field("kind")
    wanted = ((kind == AUCTION) & (pc.field("category") == 10)) | (
        (kind == PERSON) & pc.is_in(pc.field("state"), value_set=pa.array(["OR", "ID", "CA"]))
    )
    who = pc.if_else(kind == PERSON, pc.field("id"), pc.field("seller"))
    columns = {name: name for name in ("kind", "id", "name", "city", "state", "emitted")}
    schema = {"name": str, "city": str, "state": str, "id": int, "emitted": int}
    return (
        events.filter(wanted).select({"who": who, **columns}).key_by("who").process("q3", LocalSellers, schema=schema)
    )


# ---------------------------------------------------------------- q4: what auctions of a category close at


class Closing:
    """q4: the highest valid bid of an auction, given out when it has expired. Bids may come before their auction."""

    auction = ValueState(list[int])  # category, opened, expires
    best = ValueState(int, default=0)
    early = ValueState(list[tuple[int, int]], default_factory=list)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> None:
        if row["kind"] == AUCTION:
            self.auction.value = [row["category"], row["at"], row["expires"]]
            for price, at in self.early.value:
                self._bid(price, at)
            self.early.value = []
            ctx.timers.register(row["expires"])
        elif self.auction.value is not None:
            self._bid(row["price"], row["at"])
        else:
            self.early.value = [*self.early.value, (row["price"], row["at"])]

    def _bid(self, price: int, at: int) -> None:
        _, opened, expires = self.auction.value
        if opened <= at <= expires and price > self.best.value:
            self.best.value = price

    def on_timer(self, key: int, timestamp_ms: int, ctx: Any) -> Any:
        if self.best.value:
            category, _, expires = self.auction.value
            yield {"category": category, "final": self.best.value, "emitted": expires * 1_000_000}


def _q4(events: Stream) -> Stream:
    which = pc.if_else(pc.field("kind") == AUCTION, pc.field("id"), pc.field("auction"))
    columns = {name: name for name in ("kind", "category", "expires", "price", "at", "emitted")}
    closed = (
        events.filter(pc.field("kind") != PERSON)
        .select({"which": which, **columns})
        .key_by("which")
        .process("closing", Closing, schema={"category": int, "final": int, "emitted": int}, event_time="at")
    )
    return closed.key_by("category").aggregate("q4", average=mean("final"))


# ---------------------------------------------------------------- q5, q7: the most of a window


class MostOfWindow:
    """The rows with the greatest `rank` of a window (its key: the window's end, ms), given out when it is over."""

    rank = ValueState(int, default=-1)
    rows = ValueState(list[list[int]], default_factory=list)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> None:
        if row["rank"] > self.rank.value:
            self.rank.value, self.rows.value = row["rank"], []
            ctx.timers.register(key - 1)
        if row["rank"] == self.rank.value:
            self.rows.value = [*self.rows.value, [row["auction"], row["bidder"], row["at"]]]

    def on_timer(self, key: int, timestamp_ms: int, ctx: Any) -> Any:
        for auction, bidder, at in self.rows.value:
            yield {
                "end_ms": key,
                "auction": auction,
                "rank": self.rank.value,
                "bidder": bidder,
                "at": at,
                "emitted": key * 1_000_000,
            }
        self.rank.value, self.rows.value = -1, []


_MOST = dict.fromkeys(("end_ms", "auction", "rank", "bidder", "at", "emitted"), int)


def _q5(events: Stream) -> Stream:
    bids = events.filter(pc.field("kind") == BID).select(["auction", "at"])
    counts = sliding(bids, "hot", ("auction",), timedelta(seconds=10), timedelta(seconds=2), event_time="at")
    zero = pc.field("n") - pc.field("n")
    last = pc.field("end_ms") - 1
    ranked = counts.select(
        {"end_ms": "end_ms", "auction": "auction", "rank": "n", "bidder": zero, "at": zero, "last": last}
    )
    most = ranked.key_by("end_ms").process("q5", MostOfWindow, schema=_MOST, event_time="last")
    return most.select({"auction": "auction", "n": "rank", "emitted": "emitted"})


def _best_of_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Only bids that are the highest of their window within this batch can be the highest of it."""
    table = pa.Table.from_batches([rows])
    best = table.group_by("end_ms").aggregate([("rank", "max")])
    best = best.rename_columns(["end_ms", "rank"])
    return table.join(best, ["end_ms", "rank"], join_type="inner").select(rows.schema.names)


def _q7(events: Stream) -> Stream:
    at = pc.field("at")
    end = (pc.divide(at, _WINDOW_MS) + 1) * _WINDOW_MS
    bids = events.filter(pc.field("kind") == BID).select(
        {"end_ms": end, "auction": "auction", "rank": "price", "bidder": "bidder", "at": "at"}
    )
    best = bids.map_batches(_best_of_batch, schema=bids.schema)
    most = best.key_by("end_ms").process("q7", MostOfWindow, schema=_MOST, event_time="at")
    columns = {"auction": "auction", "price": "rank", "bidder": "bidder", "at": "at", "emitted": "emitted"}
    return most.select(columns)


# ---------------------------------------------------------------- q8: new people who sell at once


class NewSellers:
    """q8: is there a person and an auction of theirs in the window? Given out once, when both are there."""

    name = ValueState(str)
    sells = ValueState(bool, default=False)
    told = ValueState(bool, default=False)

    def process(self, key: tuple[int, int], row: dict[str, Any], ctx: Any) -> Any:
        if row["kind"] == PERSON:
            self.name.value = row["name"]
        else:
            self.sells.value = True
        if self.name.value is not None and self.sells.value and not self.told.value:
            self.told.value = True
            yield {"id": key[0], "name": self.name.value, "end_ms": key[1], "emitted": row["emitted"]}
        ctx.timers.register(key[1] - 1)

    def on_timer(self, key: tuple[int, int], timestamp_ms: int, ctx: Any) -> None:
        for state in (self.name, self.sells, self.told):
            state.clear()


def _q8(events: Stream) -> Stream:
    kind, at = pc.field("kind"), pc.field("at")
    who = pc.if_else(kind == PERSON, pc.field("id"), pc.field("seller"))
    end = (pc.divide(at, _WINDOW_MS) + 1) * _WINDOW_MS
    columns = {"kind": "kind", "name": "name", "at": "at", "emitted": "emitted"}
    rows = events.filter(kind != BID).select({"who": who, "end_ms": end, **columns})
    schema = {"id": int, "name": str, "end_ms": int, "emitted": int}
    return rows.key_by("who", "end_ms").process("q8", NewSellers, schema=schema, event_time="at")


# ---------------------------------------------------------------- all

_END = "unix_millis(window.end) * 1000000 AS emitted"
_FLINK_END = "UNIX_TIMESTAMP(CAST(window_end AS STRING)) * 1000000000 AS emitted"
_COUNTS = f"(SELECT auction, window, count(*) AS n FROM {_BID} GROUP BY auction, window(ts, '10 seconds', '2 seconds'))"
_END_MS = f"(at DIV {_WINDOW_MS} + 1) * {_WINDOW_MS}"


def _bounded_view(kind: int) -> str:
    """Flink's window functions want a table by name."""
    return f"CREATE TEMPORARY VIEW of_kind_{kind} AS SELECT * FROM events WHERE kind = {kind}"


def _flink_windows(kind: int, function: str) -> str:
    return f"TABLE({function.format(f'TABLE of_kind_{kind}, DESCRIPTOR(ts)')})"


_FLINK_END_OF_C = _FLINK_END.replace("window_end", "c.window_end")
_SAME_WINDOW = "c.window_start = m.window_start AND c.window_end = m.window_end"
_TUMBLE = "TUMBLE({}, INTERVAL '10' SECOND)"
_HOP = "HOP({}, INTERVAL '2' SECOND, INTERVAL '10' SECOND)"
_FLINK_COUNTS = (
    f"(SELECT auction, window_start, window_end, COUNT(*) AS n FROM {_flink_windows(BID, _HOP)} "
    "GROUP BY auction, window_start, window_end)"
)

_Q0 = f"SELECT auction, bidder, price, `at`, emitted FROM {_BID}"
_Q1 = f"SELECT auction, bidder, price * 0.908D AS price, `at`, emitted FROM {_BID}"
_Q2 = f"SELECT auction, price, emitted FROM {_BID} WHERE mod(auction, 123) = 0"
_Q3 = (
    f"SELECT p.name, p.city, p.state, a.id, a.emitted FROM {_AUCTION} a JOIN {_PERSON} p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
)
_Q4 = (
    "SELECT category, avg(highest) AS average, max(emitted) AS emitted FROM (SELECT a.id, a.category, max(b.price) AS "
    f"highest, max(b.emitted) AS emitted FROM {_AUCTION} a JOIN {_BID} b ON a.id = b.auction "
    "WHERE b.`at` BETWEEN a.`at` AND a.expires GROUP BY a.id, a.category) closed GROUP BY category"
)
_Q7 = (
    f"SELECT auction, price, bidder, at, {_END_MS} * 1000000 AS emitted FROM {_BID} b JOIN (SELECT max(price) AS most, "
    f"{_END_MS} AS end_ms FROM {_BID} GROUP BY {_END_MS}) m ON b.price = m.most AND {_END_MS} = m.end_ms"
)
_Q8 = (
    "SELECT DISTINCT id, name, p.end_ms, p.end_ms * 1000000 AS emitted "
    f"FROM (SELECT id, name, {_END_MS} AS end_ms FROM {_PERSON}) p "
    f"JOIN (SELECT seller, {_END_MS} AS end_ms FROM {_AUCTION}) a ON p.id = a.seller AND p.end_ms = a.end_ms"
)

_STATELESS = Workload("q0", "Nexmark q0, pass through", _Q0, _Q0, _bids, "append", input="nexmark")
QUERIES = (
    _STATELESS,
    dataclasses.replace(
        _STATELESS,
        name="q1",
        question="Nexmark q1, currency conversion",
        sql=_Q1,
        flink=_Q1.replace("0.908D", "0.908E0"),
        ours=lambda events: _bids(events).select({**_PLAIN, "price": pc.field("price") * 0.908}),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q2",
        question="Nexmark q2, selection",
        sql=_Q2,
        flink=_Q2,
        ours=lambda events: (
            _bids(events)
            .filter(pc.field("auction") - pc.divide(pc.field("auction"), 123) * 123 == 0)
            .select(["auction", "price", "emitted"])
        ),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q3",
        question="Nexmark q3, local item suggestion (join)",
        sql=_Q3,
        flink=_Q3,
        ours=_q3,
        answer=("name", "city", "state", "id"),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q4",
        question="Nexmark q4, average price per category (join, two aggregates)",
        sql=_Q4,
        flink=_Q4,
        ours=_q4,
        mode="update",
        group=("category",),
        spark_streams=False,
        answer=("category", "average"),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q5",
        question="Nexmark q5, hot items (sliding windows)",
        sql=f"SELECT auction, n, {_END} FROM {_COUNTS} c JOIN (SELECT max(n) AS most, window AS of_window FROM "
        f"{_COUNTS} GROUP BY window) m ON c.n = m.most AND c.window = m.of_window",
        flink=f"{_bounded_view(BID)};CREATE TEMPORARY VIEW counts AS SELECT * FROM {_FLINK_COUNTS};"
        f"SELECT c.auction, c.n, {_FLINK_END_OF_C} FROM counts c JOIN (SELECT MAX(n) AS most, window_start, "
        f"window_end FROM counts GROUP BY window_start, window_end) m ON c.n = m.most AND {_SAME_WINDOW}",
        ours=_q5,
        windowed=True,
        spark_streams=False,
    ),
    dataclasses.replace(
        _STATELESS,
        name="q7",
        question="Nexmark q7, highest bid",
        sql=_Q7,
        flink=f"{_bounded_view(BID)};SELECT c.auction, c.price, c.bidder, c.`at`, "
        f"{_FLINK_END_OF_C} FROM (SELECT * FROM {_flink_windows(BID, _TUMBLE)}) c "
        f"JOIN (SELECT MAX(price) AS most, window_start, window_end FROM {_flink_windows(BID, _TUMBLE)} "
        f"GROUP BY window_start, window_end) m ON c.price = m.most AND {_SAME_WINDOW}",
        ours=_q7,
        windowed=True,
        spark_streams=False,
    ),
    dataclasses.replace(
        _STATELESS,
        name="q8",
        question="Nexmark q8, monitor new users (windowed join)",
        sql=_Q8,
        flink=f"{_bounded_view(PERSON)};{_bounded_view(AUCTION)};SELECT DISTINCT p.id, p.name, "
        "UNIX_TIMESTAMP(CAST(p.window_end AS STRING)) * 1000000000 AS emitted "
        f"FROM (SELECT id, name, window_start, window_end FROM {_flink_windows(PERSON, _TUMBLE)}) p "
        f"JOIN (SELECT seller, window_start, window_end FROM {_flink_windows(AUCTION, _TUMBLE)}) a "
        "ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end",
        ours=_q8,
        spark_streams=False,
        answer=("id", "name", "end_ms"),
    ),
)
