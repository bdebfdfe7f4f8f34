"""Nexmark q0 to q22 as Flink SQL 2.3 over the table `events`; Spark's SQL is in `nexmark_queries`.

";" separates statements; the last statement is the query. They are Nexmark's own, with these exceptions. Averages are
of DOUBLE, because Flink's AVG of BIGINT drops the fraction. Flink refuses the published text of q6 (OVER with 10
PRECEDING), because OVER takes no retractions (FLINK-19059); a Top-N takes them and has the same ten auctions. q13's
side table is a function, which is cheaper than any join, because Flink's file connector has no look-up. Pure.
"""

from collections.abc import Mapping

from benchmarks.nexmark import AUCTION, BID, PERSON

_NAMES = {PERSON: "person", AUCTION: "auction", BID: "bid"}
_COLUMNS = {
    PERSON: "id, name, city, state, `at`, ts, emitted",
    AUCTION: "id, item_name, description, initial_bid, reserve, `at`, expires, seller, category, extra, ts, emitted",
    BID: "auction, bidder, price, channel, url, `at`, extra, ts, emitted",
}


def _view(kind: int, more: str = "") -> str:
    """A view of a single kind, because Flink's window functions want a table by name."""
    name, columns = _NAMES[kind], _COLUMNS[kind] + more
    return f"CREATE TEMPORARY VIEW {name} AS SELECT {columns} FROM events WHERE kind = {kind}"


def _with(*kinds: int) -> str:
    return "".join(_view(kind) + ";" for kind in kinds)


def _window(function: str) -> str:
    return f"TABLE({function})"


def _tumble(name: str, time: str = "ts") -> str:
    return _window(f"TUMBLE(TABLE {name}, DESCRIPTOR({time}), INTERVAL '10' SECOND)")


_HOP = _window("HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND)")
_SESSION = _window("SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '10' SECOND)")
_WINDOW = "window_start, window_end"


def _end_s(column: str) -> str:
    return f"UNIX_TIMESTAMP(CAST({column} AS STRING))"


_SAME_WINDOW = "c.window_start = m.window_start AND c.window_end = m.window_end"
_VALID = "auction a JOIN bid b ON a.id = b.auction WHERE b.`at` BETWEEN a.`at` AND a.expires"
_DAY = "DATE_FORMAT(ts, 'yyyy-MM-dd')"
_RANKS = (("rank1", "price < 10000"), ("rank2", "price >= 10000 AND price < 1000000"), ("rank3", "price >= 1000000"))
_BIDS = ", ".join(
    ["COUNT(*) AS total_bids", *(f"COUNT(*) FILTER (WHERE {where}) AS {rank}_bids" for rank, where in _RANKS)]
)
_DISTINCT = ", ".join(
    f"COUNT(DISTINCT {who}) AS total_{who}s, "
    + ", ".join(f"COUNT(DISTINCT {who}) FILTER (WHERE {where}) AS {rank}_{who}s" for rank, where in _RANKS)
    for who in ("bidder", "auction")
)
_CHANNEL_ID = (
    "CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' "
    "ELSE REGEXP_EXTRACT(url, '[&^]channel_id=([^&]*)', 1) END"
)
_PRICE = "price * 0.908E0"

FLINK: Mapping[str, str] = {
    "q0": _with(BID) + "SELECT auction, bidder, price, `at`, extra, emitted FROM bid",
    "q1": _with(BID) + f"SELECT auction, bidder, {_PRICE} AS price, `at`, extra, emitted FROM bid",
    "q2": _with(BID) + "SELECT auction, price, emitted FROM bid WHERE MOD(auction, 123) = 0",
    "q3": _with(PERSON, AUCTION)
    + "SELECT p.name, p.city, p.state, a.id, a.emitted FROM auction a JOIN person p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    "q4": _with(AUCTION, BID)
    + "SELECT category, AVG(CAST(highest AS DOUBLE)) AS average, MAX(emitted) AS emitted FROM (SELECT a.id, "
    f"a.category, MAX(b.price) AS highest, MAX(b.emitted) AS emitted FROM {_VALID} GROUP BY a.id, a.category) "
    "GROUP BY category",
    "q5": _with(BID) + f"CREATE TEMPORARY VIEW counts AS SELECT auction, {_WINDOW}, COUNT(*) AS n FROM {_HOP} "
    f"GROUP BY auction, {_WINDOW};"
    f"SELECT c.auction, c.n, {_end_s('c.window_end')} * 1000000000 AS emitted FROM counts c JOIN "
    f"(SELECT MAX(n) AS most, {_WINDOW} FROM counts GROUP BY {_WINDOW}) m ON c.n = m.most AND {_SAME_WINDOW}",
    "q6": _with(AUCTION, BID)
    + "SELECT seller, AVG(CAST(final AS DOUBLE)) AS average, MAX(emitted) AS emitted FROM (SELECT *, ROW_NUMBER() OVER "
    "(PARTITION BY seller ORDER BY expires DESC, id DESC) AS place FROM (SELECT a.id, a.seller, a.expires, "
    f"MAX(b.price) AS final, MAX(b.emitted) AS emitted FROM {_VALID} "
    "GROUP BY a.id, a.seller, a.expires)) WHERE place <= 10 "
    "GROUP BY seller",
    "q7": _with(BID) + "SELECT c.auction, c.price, c.bidder, c.`at`, c.extra, "
    f"{_end_s('c.window_end')} * 1000000000 AS emitted FROM (SELECT * FROM {_tumble('bid')}) c JOIN "
    f"(SELECT MAX(price) AS most, {_WINDOW} FROM {_tumble('bid')} GROUP BY {_WINDOW}) m "
    f"ON c.price = m.most AND {_SAME_WINDOW}",
    "q8": _with(PERSON, AUCTION)
    + f"SELECT DISTINCT c.id, c.name, {_end_s('c.window_end')} * 1000 AS end_ms FROM (SELECT id, name, {_WINDOW} FROM "
    f"{_tumble('person')}) c JOIN (SELECT seller, {_WINDOW} FROM {_tumble('auction')}) m ON c.id = m.seller AND "
    f"{_SAME_WINDOW}",
    "q9": _with(AUCTION, BID)
    + "SELECT id, item_name, description, initial_bid, reserve, `at`, expires, seller, category, extra, bidder, price, "
    "at_bid, extra_bid, emitted FROM (SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.`at`, "
    "a.expires, a.seller, a.category, a.extra, b.bidder, b.price, b.`at` AS at_bid, b.extra AS extra_bid, b.emitted, "
    f"ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`at`, b.emitted) AS place FROM {_VALID}) "
    "WHERE place = 1",
    "q10": _with(BID)
    + f"SELECT auction, bidder, price, `at`, extra, {_DAY} AS `day`, DATE_FORMAT(ts, 'HH:mm') AS `minute`, emitted "
    "FROM bid",
    "q11": _with(BID) + f"SELECT bidder, COUNT(*) AS n, window_start AS start_ms, window_end AS end_ms FROM {_SESSION} "
    f"GROUP BY bidder, {_WINDOW}",
    "q12": _view(BID, ", PROCTIME() AS seen")
    + f";SELECT bidder, COUNT(*) AS n, {_WINDOW} FROM {_tumble('bid', 'seen')} GROUP BY bidder, {_WINDOW}",
    "q13": _with(BID) + "CREATE TEMPORARY SYSTEM FUNCTION side_value AS 'bench.flink.SideValue';"
    "SELECT * FROM (SELECT auction, bidder, price, `at`, side_value(auction) AS `value`, emitted FROM bid) "
    "WHERE `value` IS NOT NULL",
    "q14": _with(BID)
    + f"SELECT auction, bidder, {_PRICE} AS price, CASE WHEN HOUR(ts) >= 8 AND HOUR(ts) <= 18 THEN 'dayTime' WHEN "
    "HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time_of_day, CHAR_LENGTH(extra) - "
    f"CHAR_LENGTH(REPLACE(extra, 'c', '')) AS cs, emitted FROM bid WHERE {_PRICE} > 1000000 AND {_PRICE} < 50000000",
    "q15": _with(BID) + f"SELECT {_DAY} AS `day`, {_BIDS}, {_DISTINCT} FROM bid GROUP BY {_DAY}",
    "q16": _with(BID)
    + f"SELECT channel, {_DAY} AS `day`, MAX(DATE_FORMAT(ts, 'HH:mm')) AS last_minute, {_BIDS}, {_DISTINCT} FROM bid "
    f"GROUP BY channel, {_DAY}",
    "q17": _with(BID) + f"SELECT auction, {_DAY} AS `day`, {_BIDS}, MIN(price) AS min_price, MAX(price) AS max_price, "
    f"AVG(CAST(price AS DOUBLE)) AS average, SUM(price) AS total FROM bid GROUP BY auction, {_DAY}",
    "q18": _with(BID)
    + "SELECT bidder, auction, price, channel, url, `at`, extra, emitted FROM (SELECT *, ROW_NUMBER() OVER "
    "(PARTITION BY bidder, auction ORDER BY ts DESC) AS place FROM bid) WHERE place = 1",
    "q19": _with(BID)
    + "SELECT auction, price, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) "
    "AS place FROM bid) WHERE place <= 10",
    "q20": _with(AUCTION, BID)
    + "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.`at`, b.extra, b.emitted, a.item_name, a.description, "
    "a.initial_bid, a.reserve, a.`at` AS at_right, a.expires, a.seller, a.category, a.extra AS extra_right FROM bid b "
    "JOIN auction a ON b.auction = a.id WHERE a.category = 10",
    "q21": _with(BID)
    + f"SELECT * FROM (SELECT auction, bidder, price, channel, {_CHANNEL_ID} AS channel_id, emitted FROM bid) WHERE "
    "channel_id IS NOT NULL",
    "q22": _with(BID)
    + "SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2, "
    "SPLIT_INDEX(url, '/', 5) AS dir3, emitted FROM bid",
}
