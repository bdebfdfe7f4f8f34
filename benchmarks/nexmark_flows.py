"""Nexmark's queries in our DSL: joins, windows, aggregates and expressions, without own functions.

`events` has all three kinds of rows (`benchmarks.nexmark`). Each function returns the result's stream;
`benchmarks.nexmark_queries` has the same queries in SQL.
"""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import (
    Every,
    Global,
    RowAggregate,
    Session,
    Sliding,
    Tumbling,
    arg_max,
    count,
    count_distinct,
    first,
    largest,
    max_,
    mean,
    min_,
    sum_,
)
from barrier_runtime.api.dataflow import Stream

SIDE_ROWS = 10_000  # of q13's table
_EVER = timedelta(days=36_500)
_ANY_TIME = (-_EVER, _EVER)
_LONGEST = timedelta(seconds=10)  # more than an auction lasts at 500 events per second or more
_WINDOW, _SLIDE, _INSTANT = timedelta(seconds=10), timedelta(seconds=2), timedelta(milliseconds=1)
_AT = pa.timestamp("ms", "UTC")
_NS_PER_MS = 1_000_000
_BID = ("auction", "bidder", "price", "channel", "url", "at", "extra", "emitted")


def bids(events: Stream, *columns: str) -> Stream:
    """The bids; `columns`: default all."""
    return events.filter("kind = 2").select(list(columns or _BID))


def _ms(column: str) -> pc.Expression:
    return pc.field(column).cast(pa.int64())


def _end(stream: Stream, columns: dict[str, Any]) -> Stream:
    """`columns`, and `emitted`: the window's end in ns."""
    return stream.select({**columns, "emitted": _ms("window_end") * _NS_PER_MS})


# ---------------------------------------------------------------- expressions


def q0(events: Stream) -> Stream:
    return bids(events, "auction", "bidder", "price", "at", "extra", "emitted")


def q1(events: Stream) -> Stream:
    plain = {name: name for name in ("auction", "bidder", "at", "extra", "emitted")}
    return bids(events, *plain, "price").select({**plain, "price": "price * 0.908"})


def q2(events: Stream) -> Stream:
    return bids(events, "auction", "price", "emitted").filter("auction % 123 = 0")


def q10(events: Stream) -> Stream:
    """Rows of a log that is written to folders by day and minute."""
    plain = {name: name for name in ("auction", "bidder", "price", "at", "extra", "emitted")}
    timed = bids(events, *plain).select({**plain, "ts": pc.field("at").cast(_AT)})
    parts = {"day": "date_format(ts, 'yyyy-MM-dd')", "minute": "date_format(ts, 'HH:mm')"}
    return timed.select({**plain, **parts})


def q14(events: Stream) -> Stream:
    columns = {name: name for name in ("auction", "bidder", "extra", "emitted")}
    made = bids(events, *columns, "price", "at")
    priced = made.select({**columns, "price": "price * 0.908", "ts": pc.field("at").cast(_AT)})
    time_of_day = (
        "CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN "
        "'nightTime' ELSE 'otherTime' END"
    )
    return priced.filter("price > 1000000 AND price < 50000000").select(
        {"auction": "auction", "bidder": "bidder", "price": "price", "time_of_day": time_of_day,
         "cs": "CAST(regexp_count(extra, 'c') AS BIGINT)", "emitted": "emitted"}
    )  # fmt: skip


def q21(events: Stream) -> Stream:
    found = pc.struct_field(pc.extract_regex(pc.field("url"), pattern="[&^]channel_id=(?P<id>[^&]*)"), "id")
    known = {"id_in_url": found, "channel_name": "lower(channel)"}
    columns = ("auction", "bidder", "price", "channel", "url", "emitted")
    rows = bids(events, *columns).select({**{name: name for name in columns}, **known})
    channel_id = (
        "CASE channel_name WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' "
        "ELSE id_in_url END"
    )
    told = rows.select({"auction": "auction", "bidder": "bidder", "price": "price", "channel": "channel",
                        "channel_id": channel_id, "emitted": "emitted"})  # fmt: skip
    return told.filter("channel_id IS NOT NULL")


def q22(events: Stream) -> Stream:
    dirs = {f"dir{number}": f"split_part(url, '/', {3 + number})" for number in (1, 2, 3)}
    plain = {name: name for name in ("auction", "bidder", "price", "channel", "emitted")}
    return bids(events, *plain, "url").select({**plain, **dirs})


def side_table() -> pa.Table:
    """The table for the look-ups of q13."""
    keys = list(range(SIDE_ROWS))
    return pa.table({"key": keys, "value": [f"value-{key}" for key in keys]})


def q13(events: Stream) -> Stream:
    key = pc.field("auction") - pc.divide(pc.field("auction"), SIDE_ROWS) * SIDE_ROWS
    plain = {name: name for name in ("auction", "bidder", "price", "at", "emitted")}
    keyed = bids(events, *plain).select({**plain, "key": key})
    joined = keyed.broadcast_join("side", side_table(), on="key", how="inner")
    return joined.select({**plain, "value": "value"})


# ---------------------------------------------------------------- joins


def q3(events: Stream) -> Stream:
    people = events.filter("kind = 0 AND state IN ('OR', 'ID', 'CA')").select(["id", "name", "city", "state", "at"])
    auctions = events.filter("kind = 1 AND category = 10").select(
        {"seller": "seller", "auction": "id", "at": "at", "emitted": "emitted"}
    )
    joined = auctions.key_by("seller").join("q3", people.key_by("id"), between=_ANY_TIME, event_time="at")
    return joined.select({"name": "name", "city": "city", "state": "state", "id": "auction", "emitted": "emitted"})


AUCTION = (
    "id", "item_name", "description", "initial_bid", "reserve", "at", "expires", "seller", "category", "extra",
)  # fmt: skip


def q20(events: Stream) -> Stream:
    auctions = events.filter("kind = 1 AND category = 10").select(list(AUCTION))
    return bids(events).key_by("auction").join("q20", auctions.key_by("id"), between=_ANY_TIME, event_time="at")


def q8(events: Stream) -> Stream:
    people = events.filter("kind = 0").select(["id", "name", "at"])
    auctions = events.filter("kind = 1").select(["seller", "at"])
    new = people.key_by("id").window_join(
        "q8", auctions.key_by("seller"), Tumbling(_WINDOW), event_time="at", how="semi"
    )
    return _end(new, {"id": "id", "name": "name", "end_ms": _ms("window_end")})


# ---------------------------------------------------------------- auctions that have closed


def _valid_bids(events: Stream, *columns: str) -> Stream:
    """Each bid with the auction, if the auction was open.

    `columns` are of the auction; columns of the bid that both have end in `_bid`."""
    auctions = events.filter("kind = 1").select(list(dict.fromkeys(("id", "at", "expires", *columns))))
    made = bids(events, "auction", "bidder", "price", "at", "extra", "emitted")
    joined = auctions.key_by("id").join(
        "bids", made.key_by("auction"), between=(timedelta(), _LONGEST), event_time="at", suffix=("", "_bid")
    )
    return joined.filter("at_bid <= expires")


def _closed(events: Stream, *columns: str) -> Stream:
    """Each auction with the highest bid (`final`) on expiry: a window of the moment of expiry."""
    closing = _valid_bids(events, *columns).key_by("id", *columns)
    windows = closing.window("closing", Tumbling(_INSTANT), event_time="expires")
    return windows.aggregate(final=max_("price"), emitted=max_("emitted"), closed=first("expires"))


def q4(events: Stream) -> Stream:
    closed = _closed(events, "category").key_by("category")
    return closed.aggregate("q4", average=mean("final"))


class LastTen(RowAggregate):
    """The mean of the last ten prices, in the order of closing time and id."""

    type, state = pa.float64(), list[tuple[int, int, int]]

    def zero(self) -> list[tuple[int, int, int]]:
        return []

    def add(self, state: list[tuple[int, int, int]], closed: int, id: int, price: int) -> list[tuple[int, int, int]]:
        return sorted([*state, (closed, id, price)])[-10:]

    def merge(self, state: list[tuple[int, int, int]], later: list[tuple[int, int, int]]) -> Any:
        return sorted([*state, *later])[-10:]

    def result(self, state: list[tuple[int, int, int]]) -> float:
        return sum(price for _, _, price in state) / max(1, len(state))  # a new key's result is asked for too


def q6(events: Stream) -> Stream:
    closed = _closed(events, "seller").key_by("seller")
    return closed.aggregate("q6", average=LastTen("closed", "id", "final"))


def q9(events: Stream) -> Stream:
    """The winning bid: the earliest of the highest bids.

    A rank holds a price of up to 10^8 and 20 s in ns."""
    columns = AUCTION[1:]
    valid = _valid_bids(events, *columns)
    every = {name: name for name in ("id", *columns, "bidder", "price", "at_bid", "extra_bid", "emitted")}
    left_ns = (pc.field("expires") + 1) * _NS_PER_MS - pc.field("emitted")
    rank = pc.field("price") * 20_000_000_000 + left_ns
    ranked = valid.select({**every, "rank": rank})
    windows = ranked.key_by("id").window("closing", Tumbling(_INSTANT), event_time="expires")
    auction: dict[str, Any] = {name: first(name) for name in columns}
    bid = ("bidder", "at_bid", "extra_bid", "emitted")
    winner: dict[str, Any] = {name: arg_max(name, by="rank") for name in bid}
    winning: Stream = windows.aggregate(**auction, **winner, price=max_("price"))
    return winning


# ---------------------------------------------------------------- maxima of a window


def q5(events: Stream) -> Stream:
    """The auctions with the most bids of a window: their count is the window's maximum."""
    sliding = bids(events, "auction", "at").key_by("auction").window("hot", Sliding(_WINDOW, _SLIDE), event_time="at")
    counts = sliding.aggregate(n=count()).select(
        {"auction": "auction", "n": "n", "end_ms": _ms("window_end"), "last": _ms("window_end") - 1}
    )
    most = counts.key_by("end_ms").window("most", Tumbling(_INSTANT), event_time="last").aggregate(most=max_("n"))
    best = most.select({"end_ms": "end_ms", "most": "most", "last": pc.field("end_ms") - 1})
    joined = counts.key_by("end_ms", "n").join(
        "q5", best.key_by("end_ms", "most"), between=(timedelta(), timedelta()), event_time="last"
    )
    return joined.select({"auction": "auction", "n": "n", "emitted": pc.field("end_ms") * _NS_PER_MS})


def q7(events: Stream) -> Stream:
    """The highest bids of a window: their price is the window's maximum, found per auction first."""
    end = (pc.divide(pc.field("at"), 10_000) + 1) * 10_000
    plain = {name: name for name in ("auction", "price", "bidder", "at", "extra")}
    made = bids(events, *plain).select({**plain, "end_ms": end})
    windows = made.key_by("auction", "end_ms").window("of-auctions", Tumbling(_WINDOW), event_time="at")
    greatest = windows.aggregate(most=max_("price")).select({"end_ms": "end_ms", "most": "most", "last": "end_ms - 1"})
    most = greatest.key_by("end_ms").window("most", Tumbling(_INSTANT), event_time="last").aggregate(most=max_("most"))
    best = most.select({"end_ms": "end_ms", "most": "most", "last": pc.field("end_ms") - 1})
    joined = made.key_by("end_ms", "price").join(
        "q7", best.key_by("end_ms", "most"), between=(timedelta(), _WINDOW), event_time=("at", "last")
    )
    return joined.select({**plain, "emitted": pc.field("end_ms") * _NS_PER_MS})


# ---------------------------------------------------------------- counts


def q11(events: Stream) -> Stream:
    sessions = bids(events, "bidder", "at").key_by("bidder").window("q11", Session(_WINDOW), event_time="at")
    counted = sessions.aggregate(n=count())
    return _end(counted, {"bidder": "bidder", "n": "n", "start_ms": _ms("window_start"), "end_ms": _ms("window_end")})


def q12(events: Stream) -> Stream:
    """Bids in 10 s of the wall clock; a bidder's next window begins with the first bid after the last."""
    early = Every(_WINDOW, clock="processing", accumulate=False)
    windows = bids(events, "bidder", "emitted").key_by("bidder").window("q12", Global(), early=early)
    return windows.aggregate(n=count(), emitted=max_("emitted"))


_RANKS = (("rank1", "price < 10000"), ("rank2", "price >= 10000 AND price < 1000000"), ("rank3", "price >= 1000000"))


def _ranked(events: Stream, *columns: str, who: tuple[str, ...] = ("bidder", "auction"), **computed: str) -> Stream:
    """`columns` of the bids, `computed` columns (with the time `ts`), the day, and `who` per price rank.

    The columns per rank have the values of `who` only if the bid has that rank."""
    of_rank = {f"{rank}_{each}": f"CASE WHEN {where} THEN {each} END" for rank, where in _RANKS for each in who}
    plain = {name: name for name in ("auction", "bidder", "emitted", *columns)}
    made = bids(events, *dict.fromkeys((*plain, "price", "at")))
    timed = made.select({**plain, "price": "price", "ts": pc.field("at").cast(_AT)})
    return timed.select({**plain, "day": "date_format(ts, 'yyyy-MM-dd')", **computed, **of_rank})


def _distinct() -> dict[str, Any]:
    ranks = [rank for rank, _ in _RANKS]
    return {
        "total_bids": count(),
        **{f"{rank}_bids": count(f"{rank}_bidder") for rank in ranks},
        "total_bidders": count_distinct("bidder", limit=1_000_000),
        **{f"{rank}_bidders": count_distinct(f"{rank}_bidder", limit=1_000_000) for rank in ranks},
        "total_auctions": count_distinct("auction", limit=1_000_000),
        **{f"{rank}_auctions": count_distinct(f"{rank}_auction", limit=1_000_000) for rank in ranks},
    }


def q15(events: Stream) -> Stream:
    return _ranked(events).key_by("day").aggregate("q15", **_distinct())


def q16(events: Stream) -> Stream:
    ranked = _ranked(events, "channel", minute="date_format(ts, 'HH:mm')").key_by("channel", "day")
    return ranked.aggregate("q16", last_minute=max_("minute"), **_distinct())


def q17(events: Stream) -> Stream:
    ranked = _ranked(events, "price", who=("bidder",)).key_by("auction", "day")
    return ranked.aggregate(
        "q17",
        total_bids=count(),
        rank1_bids=count("rank1_bidder"),
        rank2_bids=count("rank2_bidder"),
        rank3_bids=count("rank3_bidder"),
        min_price=min_("price"),
        max_price=max_("price"),
        average=mean("price"),
        total=sum_("price"),
    )


# ---------------------------------------------------------------- the newest and the highest of a key


def q18(events: Stream) -> Stream:
    columns = ("price", "channel", "url", "at", "extra", "emitted")
    newest: dict[str, Any] = {f"last_{name}": arg_max(name, by="emitted") for name in columns}
    found = bids(events).key_by("bidder", "auction").aggregate("q18", **newest)
    return found.select({"bidder": "bidder", "auction": "auction", **{name: f"last_{name}" for name in columns}})


def q19(events: Stream) -> Stream:
    made = bids(events, "auction", "price", "emitted").key_by("auction")
    return made.aggregate("q19", top=largest("price", 10))
