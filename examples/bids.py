"""An auction house (Nexmark's events): four questions in a single flow, from Kafka and exactly once.

    KAFKA=localhost:9092 barrier-runtime run examples/bids.py:flow --master 'local[4,16]' --checkpoints build/c

- `hot`: every two seconds, the auctions with the most bids in the last ten seconds (Nexmark's q5): sliding windows,
  joined with the greatest count of each window.
- `highest`: the highest bids of every ten seconds (q7): a tumbling window, joined with the bids.
- `new_sellers`: people who registered and opened an auction within the same ten seconds (q8): a window join.
- `raises`: each bid beside the previous bid of the same auction: the stream of bids joined with itself, as of each bid.

Seconds are event time, so no answer depends on when rows arrive.
"""

import os
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Dataflow, KafkaSink, ParquetSink, Sliding, Stream, Tumbling, count, max_

PERSON, AUCTION, BID = 0, 1, 2  # kind of an event; rows of any other kind only advance time
EVENT = {"kind": int, "at": int, "id": int, "name": str, "seller": int, "auction": int, "bidder": int, "price": int}
WINDOW, SLIDE = timedelta(seconds=10), timedelta(seconds=2)
_MOMENT = timedelta(milliseconds=1)


def results(events: Stream) -> dict[str, Stream]:
    """Answers by name, from `events` with the columns of `EVENT`.

    A column that a kind lacks is null; `at` is in milliseconds."""
    bids = events.filter(f"kind = {BID}").select(["auction", "bidder", "price", "at"])
    return {
        "hot": _hot(bids),
        "highest": _highest(bids),
        "new_sellers": _new_sellers(events),
        "raises": _raises(bids),
    }


def _hot(bids: Stream) -> Stream:
    counts = bids.key_by("auction").window("bids-of-auction", Sliding(WINDOW, SLIDE), event_time="at")
    ended = counts.aggregate(bids=count()).select({"auction": "auction", "bids": "bids", "end_ms": _end_ms()})
    at_end = ended.select({"auction": "auction", "bids": "bids", "end_ms": "end_ms", "last": "end_ms - 1"})
    return _of_the_greatest("hot", at_end, "bids", (timedelta(), timedelta()))


def _highest(bids: Stream) -> Stream:
    windows = bids.key_by("auction").window("price-of-auction", Tumbling(WINDOW), event_time="at")
    best = windows.aggregate(price=max_("price")).select({"price": "price", "end_ms": _end_ms()})
    greatest = _greatest("highest", best.select({"price": "price", "end_ms": "end_ms", "last": "end_ms - 1"}), "price")
    ends = (pc.divide(pc.field("at"), _ms(WINDOW)) + 1) * _ms(WINDOW)
    made = bids.select({"auction": "auction", "bidder": "bidder", "price": "price", "at": "at", "end_ms": ends})
    return made.key_by("end_ms", "price").join(
        "highest-in-window",
        greatest.key_by("end_ms", "price"),
        between=(timedelta(), WINDOW),
        event_time=("at", "last"),
        how="semi",
    )


def _new_sellers(events: Stream) -> Stream:
    people = events.filter(f"kind = {PERSON}").select(["id", "name", "at"])
    auctions = events.filter(f"kind = {AUCTION}").select(["seller", "at"])
    new = people.key_by("id").window_join(
        "new-sellers", auctions.key_by("seller"), Tumbling(WINDOW), event_time="at", how="semi"
    )
    return new.select({"id": "id", "name": "name", "end_ms": _end_ms()})


def _raises(bids: Stream) -> Stream:
    keyed = bids.key_by("auction")
    joined = keyed.asof_join("bid-before", keyed, event_time="at", exact=False, suffix=("", "_before"))
    return joined.select(["auction", "bidder", "at", "price", "price_before"])


def _of_the_greatest(name: str, rows: Stream, column: str, between: tuple[timedelta, timedelta]) -> Stream:
    """Rows whose `column` is the greatest of their window."""
    greatest = _greatest(name, rows, column)
    return rows.key_by("end_ms", column).join(
        f"{name}-in-window", greatest.key_by("end_ms", column), between=between, event_time="last", how="semi"
    )


def _greatest(name: str, rows: Stream, column: str) -> Stream:
    """Greatest value of each window, as a row at the window's last millisecond."""
    windows = rows.key_by("end_ms").window(f"greatest-of-{name}", Tumbling(_MOMENT), event_time="last")
    found: Stream = windows.aggregate(**{column: max_(column)})
    return found.select({column: column, "end_ms": "end_ms", "last": "end_ms - 1"})


def _end_ms() -> pc.Expression:
    return pc.field("window_end").cast(pa.int64())


def _ms(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)


def build(bootstrap: str, output: str) -> Dataflow:
    """Flow from topic `events` (JSON) to existing topics and Parquet files of `raises`.

    The topics are `hot`, `highest` and `new_sellers`."""
    flow = Dataflow("bids")
    events = flow.read_kafka(
        "events",
        bootstrap,
        "events",
        group="bids",
        key=None,
        value="json",
        schema=EVENT,
        metadata=[],
        event_time="at",
    )
    made = results(events)
    made.pop("raises").sink("raises", ParquetSink(f"{output}/raises"))
    for topic, stream in made.items():
        stream.sink(topic, KafkaSink(bootstrap, topic))
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line."""
    if name != "flow":
        raise AttributeError(name)
    return build(os.environ.get("KAFKA", "localhost:9092"), os.environ.get("OUTPUT", "build/output"))
