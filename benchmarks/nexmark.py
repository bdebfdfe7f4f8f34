"""Nexmark's auction house (Tucker et al., 2008): of 50 events one is a person, three are auctions, 46 are bids.

Event i is a function of i alone. All three kinds are rows of one stream with the columns of all; what a kind does not
have is null. Auctions and bids refer to persons and auctions of the recent past, some much more often than others.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.events import mixed

PERSON, AUCTION, BID = 0, 1, 2
_PER_ROUND = 50
_AUCTIONS_PER_ROUND = 3
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne")
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_RECENT = 100  # persons and auctions in flight
_BEGIN_NS = 1_700_000_000 * 10**9

SCHEMA = pa.schema(
    [
        ("kind", pa.int64()),
        ("at", pa.int64()),
        ("emitted", pa.int64()),
        ("id", pa.int64()),  # of the person or auction
        ("name", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("expires", pa.int64()),  # event time, ms
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
    ]
)

Ints = npt.NDArray[np.int64]


def events(numbers: Ints, emitted_ns: Ints) -> pa.RecordBatch:
    rounds, place = numbers // _PER_ROUND, numbers % _PER_ROUND
    kind = np.select([place == 0, place <= _AUCTIONS_PER_ROUND], [PERSON, AUCTION], BID)
    person, auction, bid = kind == PERSON, kind == AUCTION, kind == BID
    last_person = rounds
    last_auction = rounds * _AUCTIONS_PER_ROUND + np.clip(place, 1, _AUCTIONS_PER_ROUND) - 1
    a, b, c = (_draw(numbers, salt) for salt in (1, 2, 3))
    at = emitted_ns // 1_000_000
    hot = c % 4 != 0
    seller = np.where(hot, last_person // 100 * 100, np.maximum(0, last_person - a % _RECENT))
    bid_on = np.where(hot, last_auction // 100 * 100, np.maximum(0, last_auction - a % _RECENT))
    numbers_by_name = {
        "kind": (kind, None),
        "at": (at, None),
        "emitted": (emitted_ns, None),
        "id": (np.where(person, last_person, last_auction), bid),
        "seller": (seller, ~auction),
        "category": (10 + a % 5, ~auction),
        "expires": (at + 500 + b % 10_000, ~auction),
        "auction": (bid_on, ~bid),
        "bidder": (np.maximum(0, last_person - b % _RECENT), ~bid),
        "price": (100 + (10.0 ** (b % 10_000 / 2_000)).astype(np.int64), ~bid),
    }
    texts = {
        "name": _named(_FIRST, a, person, _named(_LAST, b, person)),
        "city": _named(_CITIES, c, person),
        "state": _named(_STATES, c, person),
    }
    columns = [texts[field.name] if field.name in texts else _column(*numbers_by_name[field.name]) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def bounded(begin: int, end: int, pace: int = 10_000) -> pa.RecordBatch:
    """Events `begin` … `end` - 1 of a bounded input, with `pace` of them per second of event time."""
    numbers = np.arange(begin, end)
    return events(numbers, _BEGIN_NS + numbers * (10**9 // pace))


def _draw(numbers: Ints, salt: int) -> Ints:
    return (mixed(numbers * 4 + salt) >> np.uint64(1)).astype(np.int64)


def _column(values: Ints, absent: "npt.NDArray[np.bool_] | None") -> pa.Array:
    return pa.array(values, mask=absent)


def _named(
    names: tuple[str, ...], draw: Ints, present: "npt.NDArray[np.bool_]", after: "pa.Array | None" = None
) -> pa.Array:
    """One of `names` per row, null where it is absent; with `after`, two words."""
    indices = pa.array((draw % len(names)).astype(np.int32), mask=~present)
    words = pa.DictionaryArray.from_arrays(indices, pa.array(names)).cast(pa.string())
    return words if after is None else pc.binary_join_element_wise(words, after, " ")
