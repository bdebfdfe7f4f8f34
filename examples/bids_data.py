"""Events of the example `bids`, the answer of plain Python, and the comparison with the answer."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks import nexmark
from examples.bids import AUCTION, BID, EVENT, PERSON, SLIDE, WINDOW
from examples.run_check import Verdict

PACE = 1_000  # events per second of event time: no two in the same millisecond, so "the bid before" is unique
_WINDOW_MS, _SLIDE_MS = (round(time.total_seconds() * 1_000) for time in (WINDOW, SLIDE))

Row = dict[str, Any]
Answer = dict[str, list[Row]]


def events_of(count: int) -> list[Row]:
    """First `count` events, in the order of their times, with the columns that the example reads."""
    return nexmark.bounded(0, count, PACE).select(list(EVENT)).to_pylist()


def heartbeat(events: list[Row]) -> Row:
    """Event that ends the windows of all `events`."""
    return dict.fromkeys(EVENT) | {"kind": -1, "at": events[-1]["at"] + 2 * _WINDOW_MS}


def answer(events: Iterable[Row]) -> Answer:
    """Rows by result name, as `bids.results` computes them, in no order."""
    kinds: dict[int, list[Row]] = defaultdict(list)
    for event in events:
        kinds[event["kind"]].append(event)
    bids = kinds[BID]
    return {
        "hot": _hot(bids),
        "highest": _highest(bids),
        "new_sellers": _new_sellers(kinds[PERSON], kinds[AUCTION]),
        "raises": _raises(bids),
    }


def compare(answer: Mapping[str, list[Row]], results: Mapping[str, list[Row]]) -> Verdict:
    """Compares results: repeated rows are duplicated, unexpected rows mismatched."""
    verdict = Verdict(sum(map(len, answer.values())), len(answer["raises"]))
    for name, expected in answer.items():
        columns = sorted(expected[0])
        right, given = (
            Counter(tuple(row[column] for column in columns) for row in rows) for rows in (expected, results[name])
        )
        for row in right | given:
            kind = "mismatched" if row not in right else "lost" if given[row] < right[row] else "duplicated"
            for _ in range(abs(given[row] - right[row])):
                verdict.note(kind, f"{name}: {dict(zip(columns, row, strict=True))}")
    return verdict


def _end_ms(at: int) -> int:
    return (at // _WINDOW_MS + 1) * _WINDOW_MS


def _hot(bids: list[Row]) -> list[Row]:
    times = [bid["at"] for bid in bids]
    first, last = times[0] // _SLIDE_MS, times[-1] // _SLIDE_MS
    rows = []
    for number in range(first + 1, last + 1 + _WINDOW_MS // _SLIDE_MS):
        end = number * _SLIDE_MS
        inside = bids[bisect_left(times, end - _WINDOW_MS) : bisect_left(times, end)]
        counts = Counter(bid["auction"] for bid in inside)
        most = max(counts.values())
        rows += [{"auction": auction, "bids": most, "end_ms": end} for auction, n in counts.items() if n == most]
    return rows


def _highest(bids: list[Row]) -> list[Row]:
    most = _by_window(bids, lambda rows: max(row["price"] for row in rows))
    columns = ("auction", "bidder", "price", "at")
    return [
        {column: bid[column] for column in columns} | {"end_ms": _end_ms(bid["at"])}
        for bid in bids
        if bid["price"] == most[_end_ms(bid["at"])]
    ]


def _new_sellers(people: list[Row], auctions: list[Row]) -> list[Row]:
    sellers = _by_window(auctions, lambda rows: {row["seller"] for row in rows})
    return [
        {"id": person["id"], "name": person["name"], "end_ms": end}
        for person in people
        if person["id"] in sellers.get(end := _end_ms(person["at"]), set())
    ]


def _raises(bids: list[Row]) -> list[Row]:
    before: dict[int, int] = {}
    rows = []
    for bid in bids:
        columns = ("auction", "bidder", "at", "price")
        rows.append({column: bid[column] for column in columns} | {"price_before": before.get(bid["auction"])})
        before[bid["auction"]] = bid["price"]
    return rows


def _by_window(rows: list[Row], made: Callable[[list[Row]], Any]) -> dict[int, Any]:
    windows: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        windows[_end_ms(row["at"])].append(row)
    return {end: made(inside) for end, inside in windows.items()}
