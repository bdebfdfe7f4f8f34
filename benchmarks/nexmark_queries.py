"""Nexmark q0 to q22, each as SQL over a bounded or endless view; `nexmark_flows` has them in our DSL.

`answer` names the columns to compare. Flink's texts are in `nexmark_flink`.
"""

import dataclasses

from benchmarks import nexmark_flows as flows
from benchmarks.nexmark import AUCTION, BID, PERSON
from benchmarks.nexmark_flink import FLINK
from benchmarks.workloads import Workload

_WINDOW_MS = 10_000
_PERSON = f"(SELECT id, name, city, state, `at`, ts, emitted FROM events WHERE kind = {PERSON})"
_AUCTION = (
    "(SELECT id, item_name, description, initial_bid, reserve, `at`, expires, seller, category, extra, ts, emitted "
    f"FROM events WHERE kind = {AUCTION})"
)
_BID = f"(SELECT auction, bidder, price, channel, url, `at`, extra, ts, emitted FROM events WHERE kind = {BID})"

_END = "unix_millis(window.end) * 1000000 AS emitted"
_COUNTS = f"(SELECT auction, window, count(*) AS n FROM {_BID} GROUP BY auction, window(ts, '10 seconds', '2 seconds'))"
_END_MS = f"(at DIV {_WINDOW_MS} + 1) * {_WINDOW_MS}"

_Q0 = f"SELECT auction, bidder, price, `at`, extra, emitted FROM {_BID}"
_Q1 = f"SELECT auction, bidder, price * 0.908D AS price, `at`, extra, emitted FROM {_BID}"
_Q2 = f"SELECT auction, price, emitted FROM {_BID} WHERE mod(auction, 123) = 0"
_Q3 = (
    f"SELECT p.name, p.city, p.state, a.id, a.emitted FROM {_AUCTION} a JOIN {_PERSON} p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
)
_VALID = f"{_AUCTION} a JOIN {_BID} b ON a.id = b.auction WHERE b.`at` BETWEEN a.`at` AND a.expires"
_Q4 = (
    "SELECT category, avg(highest) AS average, max(emitted) AS emitted FROM (SELECT a.id, a.category, max(b.price) AS "
    f"highest, max(b.emitted) AS emitted FROM {_VALID} GROUP BY a.id, a.category) closed GROUP BY category"
)
_Q5 = (
    f"SELECT auction, n, {_END} FROM {_COUNTS} c JOIN (SELECT max(n) AS most, window AS of_window FROM {_COUNTS} GROUP "
    "BY window) m ON c.n = m.most AND c.window = m.of_window"
)
_Q6 = (
    "SELECT seller, avg(final) AS average, max(emitted) AS emitted FROM (SELECT *, row_number() OVER (PARTITION BY "
    "seller ORDER BY expires DESC, id DESC) AS place FROM (SELECT a.id, a.seller, a.expires, max(b.price) AS final, "
    f"max(b.emitted) AS emitted FROM {_VALID} GROUP BY a.id, a.seller, a.expires)) WHERE place <= 10 GROUP BY seller"
)
_Q7 = (
    f"SELECT auction, price, bidder, at, extra, {_END_MS} * 1000000 AS emitted FROM {_BID} b JOIN (SELECT max(price) "
    f"AS most, {_END_MS} AS end_ms FROM {_BID} GROUP BY {_END_MS}) m ON b.price = m.most AND {_END_MS} = m.end_ms"
)
_Q8 = (
    "SELECT DISTINCT id, name, p.end_ms, p.end_ms * 1000000 AS emitted "
    f"FROM (SELECT id, name, {_END_MS} AS end_ms FROM {_PERSON}) p "
    f"JOIN (SELECT seller, {_END_MS} AS end_ms FROM {_AUCTION}) a ON p.id = a.seller AND p.end_ms = a.end_ms"
)
_Q9 = (
    "SELECT * FROM (SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.`at`, a.expires, a.seller, "
    "a.category, a.extra, b.bidder, b.price, b.`at` AS at_bid, b.extra AS extra_bid, b.emitted, row_number() OVER "
    f"(PARTITION BY a.id ORDER BY b.price DESC, b.`at`, b.emitted) AS place FROM {_VALID}) WHERE place = 1"
)
_Q10 = (
    "SELECT auction, bidder, price, `at`, extra, date_format(ts, 'yyyy-MM-dd') AS day, date_format(ts, 'HH:mm') AS "
    f"minute, emitted FROM {_BID}"
)
_Q11 = (
    "SELECT bidder, count(*) AS n, unix_millis(session_window.start) AS start_ms, unix_millis(session_window.end) AS "
    f"end_ms FROM {_BID} GROUP BY bidder, session_window(ts, '10 seconds')"
)
_Q12 = f"SELECT bidder, count(*) AS n FROM {_BID} GROUP BY bidder"
_SIDE = f"(SELECT id AS key, concat('value-', id) AS value FROM range({flows.SIDE_ROWS}))"
_Q13 = (
    f"SELECT auction, bidder, price, `at`, value, emitted FROM {_BID} b JOIN {_SIDE} s ON mod(b.auction, "
    f"{flows.SIDE_ROWS}) = s.key"
)
_Q14 = (
    "SELECT auction, bidder, price * 0.908D AS price, CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime' WHEN "
    "hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time_of_day, length(extra) - "
    f"length(replace(extra, 'c', '')) AS cs, emitted FROM {_BID} WHERE price * 0.908D > 1000000 AND price * 0.908D < "
    "50000000"
)
_RANKS = (("rank1", "price < 10000"), ("rank2", "price >= 10000 AND price < 1000000"), ("rank3", "price >= 1000000"))
_BIDS = ", ".join(
    ["count(*) AS total_bids", *(f"count(*) FILTER (WHERE {where}) AS {rank}_bids" for rank, where in _RANKS)]
)
_DISTINCT = ", ".join(
    f"count(DISTINCT {who}) AS total_{who}s, "
    + ", ".join(f"count(DISTINCT {who}) FILTER (WHERE {where}) AS {rank}_{who}s" for rank, where in _RANKS)
    for who in ("bidder", "auction")
)
_DAY = "date_format(ts, 'yyyy-MM-dd')"
_Q15 = f"SELECT {_DAY} AS day, {_BIDS}, {_DISTINCT}, max(emitted) AS emitted FROM {_BID} GROUP BY {_DAY}"
_Q16 = (
    f"SELECT channel, {_DAY} AS day, max(date_format(ts, 'HH:mm')) AS last_minute, {_BIDS}, {_DISTINCT}, max(emitted) "
    f"AS emitted FROM {_BID} GROUP BY channel, {_DAY}"
)
_Q17 = (
    f"SELECT auction, {_DAY} AS day, {_BIDS}, min(price) AS min_price, max(price) AS max_price, avg(price) AS average, "
    f"sum(price) AS total, max(emitted) AS emitted FROM {_BID} GROUP BY auction, {_DAY}"
)
_Q18 = (
    "SELECT bidder, auction, price, channel, url, `at`, extra, emitted FROM (SELECT *, row_number() OVER (PARTITION BY "
    f"bidder, auction ORDER BY emitted DESC) AS place FROM {_BID}) WHERE place = 1"
)
_Q19 = (
    "SELECT auction, slice(sort_array(collect_list(price), false), 1, 10) AS top, max(emitted) AS emitted FROM "
    f"{_BID} GROUP BY auction"
)
_Q20 = (
    "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.`at`, b.extra, b.emitted, a.item_name, a.description, "
    "a.initial_bid, a.reserve, a.`at` AS at_right, a.expires, a.seller, a.category, a.extra AS extra_right FROM "
    f"{_BID} b JOIN {_AUCTION} a ON b.auction = a.id WHERE a.category = 10"
)
_CHANNEL_ID = (
    "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' "
    "ELSE nullif(regexp_extract(url, '[&^]channel_id=([^&]*)', 1), '') END"
)
_Q21 = (
    f"SELECT * FROM (SELECT auction, bidder, price, channel, {_CHANNEL_ID} AS channel_id, emitted FROM {_BID}) WHERE "
    "channel_id IS NOT NULL"
)
_Q22 = (
    "SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2, split(url, "
    f"'/')[5] AS dir3, emitted FROM {_BID}"
)

_STATELESS = Workload("q0", "Nexmark q0, pass through", _Q0, "", flows.q0, "append", input="nexmark")
_BATCH = dataclasses.replace(_STATELESS, spark_streams=False)
_RUNNING = dataclasses.replace(_BATCH, mode="update")
_QUERIES = (
    _STATELESS,
    dataclasses.replace(
        _STATELESS,
        name="q1",
        question="Nexmark q1, currency conversion",
        sql=_Q1,
        ours=flows.q1,
    ),
    dataclasses.replace(_STATELESS, name="q2", question="Nexmark q2, selection", sql=_Q2, ours=flows.q2),
    dataclasses.replace(
        _STATELESS,
        name="q3",
        question="Nexmark q3, local item suggestion (join)",
        sql=_Q3,
        ours=flows.q3,
        answer=("name", "city", "state", "id", "emitted"),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q4",
        question="Nexmark q4, average price per category (join, two aggregates)",
        sql=_Q4,
        ours=flows.q4,
        mode="update",
        group=("category",),
        spark_streams=False,
        answer=("category", "average"),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q5",
        question="Nexmark q5, hot items (sliding windows)",
        sql=_Q5,
        ours=flows.q5,
        windowed=True,
        spark_streams=False,
    ),
    dataclasses.replace(
        _RUNNING,
        name="q6",
        question="Nexmark q6, average price of a seller's last ten auctions",
        sql=_Q6,
        ours=flows.q6,
        group=("seller",),
        answer=("seller", "average"),
    ),
    dataclasses.replace(
        _STATELESS,
        name="q7",
        question="Nexmark q7, highest bid",
        sql=_Q7,
        ours=flows.q7,
        windowed=True,
        spark_streams=False,
    ),
    dataclasses.replace(
        _STATELESS,
        name="q8",
        question="Nexmark q8, monitor new users (windowed join)",
        sql=_Q8,
        ours=flows.q8,
        spark_streams=False,
        answer=("id", "name", "end_ms"),
    ),
    dataclasses.replace(
        _BATCH,
        name="q9",
        question="Nexmark q9, winning bids (join)",
        sql=_Q9,
        ours=flows.q9,
        answer=(*flows.AUCTION, "bidder", "price", "at_bid", "extra_bid", "emitted"),
        flink_key=("id",),
    ),
    dataclasses.replace(_BATCH, name="q10", question="Nexmark q10, log by day and minute", sql=_Q10, ours=flows.q10),
    dataclasses.replace(
        _BATCH,
        name="q11",
        question="Nexmark q11, user sessions",
        sql=_Q11,
        ours=flows.q11,
        windowed=True,
        answer=("bidder", "n", "start_ms", "end_ms"),
    ),
    dataclasses.replace(
        _RUNNING,
        name="q12",
        question="Nexmark q12, bids in 10 s of the wall clock",
        sql=_Q12,
        ours=flows.q12,
        group=("bidder",),
        summed="n",
        flink_ends=False,  # Flink's last wall-clock windows are still open when the input ends
        answer=("bidder", "n"),
    ),
    dataclasses.replace(_BATCH, name="q13", question="Nexmark q13, bounded side input", sql=_Q13, ours=flows.q13),
    dataclasses.replace(_BATCH, name="q14", question="Nexmark q14, calculation", sql=_Q14, ours=flows.q14),
    dataclasses.replace(
        _RUNNING,
        name="q15",
        question="Nexmark q15, bidding statistics of a day",
        sql=_Q15,
        ours=flows.q15,
        group=("day",),
    ),
    dataclasses.replace(
        _RUNNING,
        name="q16",
        question="Nexmark q16, statistics of channels",
        sql=_Q16,
        ours=flows.q16,
        group=("channel", "day"),
    ),
    dataclasses.replace(
        _RUNNING,
        name="q17",
        question="Nexmark q17, statistics of auctions",
        sql=_Q17,
        ours=flows.q17,
        group=("auction", "day"),
    ),
    dataclasses.replace(
        _RUNNING,
        name="q18",
        question="Nexmark q18, last bid of a bidder in an auction",
        sql=_Q18,
        ours=flows.q18,
        group=("bidder", "auction"),
        flink_answer=("bidder", "auction", "at"),  # of bids in the same millisecond Flink takes any
    ),
    dataclasses.replace(
        _RUNNING,
        name="q19",
        question="Nexmark q19, ten highest bids of an auction",
        sql=_Q19,
        ours=flows.q19,
        group=("auction",),
        listed=("top", "price"),
    ),
    dataclasses.replace(
        _BATCH, name="q20", question="Nexmark q20, bids with their auction (join)", sql=_Q20, ours=flows.q20
    ),
    dataclasses.replace(_BATCH, name="q21", question="Nexmark q21, channel ids", sql=_Q21, ours=flows.q21),
    dataclasses.replace(_BATCH, name="q22", question="Nexmark q22, folders of addresses", sql=_Q22, ours=flows.q22),
)
QUERIES = tuple(dataclasses.replace(query, flink=FLINK[query.name]) for query in _QUERIES)
