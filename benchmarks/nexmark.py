"""Nexmark's auction house (Tucker et al., 2008) with fields, ratios and sizes of today's benchmark.

Of 50 events 1 is a person, 3 are auctions and 46 are bids, with 200, 500 and 100 bytes on average without a bid's url
and channel. Event i is a function of i alone. All three kinds are rows of one stream with all columns; a column that a
kind lacks is null, and `extra` is in all kinds. Half of the bids are for a single auction of the last hundred; three
quarters of the bidders and sellers are a single person of the last hundred. The others are spread over those in flight,
and some of them come later. All engines read the same Parquet files, so there is a single generator.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark_texts import channels_and_urls, drawn, extra, short

PERSON, AUCTION, BID = 0, 1, 2
PER_ROUND = 50
AUCTIONS_PER_ROUND = 3
IN_FLIGHT = 100  # auctions
LONGEST_EVENTS = 2 * IN_FLIGHT * PER_ROUND // AUCTIONS_PER_ROUND  # an auction expires within these
PACE = 10_000  # events per second of event time; default
_ACTIVE_PEOPLE = 1_000
_LEAD = 10  # people and auctions that are referred to before they come
_FIRST_ID = 1_000
_HOT = 100
_CATEGORIES = 5
_BYTES = (200, 500, 100)  # on average, by kind
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_BEGIN_NS = 1_700_000_000 * 10**9

SCHEMA = pa.schema(
    [
        ("kind", pa.int64()),
        ("at", pa.int64()),
        ("emitted", pa.int64()),
        ("id", pa.int64()),  # of the person or auction
        ("name", pa.string()),
        ("email_address", pa.string()),
        ("credit_card", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("item_name", pa.string()),
        ("description", pa.string()),
        ("initial_bid", pa.int64()),
        ("reserve", pa.int64()),
        ("expires", pa.int64()),  # event time, ms
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("extra", pa.string()),
    ]
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def events(numbers: Ints, emitted_ns: Ints, pace: int = PACE) -> pa.RecordBatch:
    """Events `numbers`, which happen when they are due.

    `pace`, events per second of event time, determines how long auctions last."""
    rounds, place = numbers // PER_ROUND, numbers % PER_ROUND
    kind = np.select([place == 0, place <= AUCTIONS_PER_ROUND], [PERSON, AUCTION], BID)
    person, auction, bid = kind == PERSON, kind == AUCTION, kind == BID
    last_person = rounds
    last_auction = rounds * AUCTIONS_PER_ROUND + np.clip(place, 0, AUCTIONS_PER_ROUND) - 1
    at = emitted_ns // 1_000_000
    initial = _price(numbers, 1)
    most_ms = LONGEST_EVENTS * 1_000 // pace
    texts = _texts(numbers, kind)
    numbers_by_name = {
        "kind": (kind, None),
        "at": (at, None),
        "emitted": (emitted_ns, None),
        "id": (np.where(person, last_person, last_auction) + _FIRST_ID, bid),
        "initial_bid": (initial, ~auction),
        "reserve": (initial + _price(numbers, 2), ~auction),
        "expires": (at + 1 + drawn(numbers, 3) % max(1, most_ms), ~auction),
        "seller": (_one_of_people(last_person, drawn(numbers, 4), 0), ~auction),
        "category": (10 + drawn(numbers, 5) % _CATEGORIES, ~auction),
        "auction": (_one_of_auctions(last_auction, drawn(numbers, 6)), ~bid),
        "bidder": (_one_of_people(last_person, drawn(numbers, 7), 1), ~bid),
        "price": (_price(numbers, 8), ~bid),
    }
    columns = [texts[field.name] if field.name in texts else _column(*numbers_by_name[field.name]) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def bounded(begin: int, end: int, pace: int = PACE) -> pa.RecordBatch:
    """Events `begin` … `end` - 1 of a bounded input, `pace` events per second of event time."""
    numbers = np.arange(begin, end)
    return events(numbers, _BEGIN_NS + numbers * (10**9 // pace), pace)


def _one_of_people(last: Ints, draw: Ints, hot: int) -> Ints:
    """`hot`: which of the last hundred is chosen three times of four; sellers and bidders differ."""
    active = np.minimum(last + 1, _ACTIVE_PEOPLE)
    any_ = last + 1 - active + (draw >> 8) % (active + _LEAD)
    return np.where(draw % 4 > 0, last // _HOT * _HOT + hot, any_) + _FIRST_ID


def _one_of_auctions(last: Ints, draw: Ints) -> Ints:
    oldest = np.maximum(0, last - IN_FLIGHT)
    any_ = oldest + (draw >> 8) % (last - oldest + 1 + _LEAD)
    return np.where(draw % 2 > 0, last // _HOT * _HOT, any_) + _FIRST_ID


def _price(numbers: Ints, salt: int) -> Ints:
    """From 100 to 10^8, as many in each power of ten."""
    return np.floor(10.0 ** (drawn(numbers, salt) / 2.0**63 * 6) * 100 + 0.5).astype(np.int64)


def _texts(numbers: Ints, kind: Ints) -> dict[str, pa.Array]:
    person, auction, bid = kind == PERSON, kind == AUCTION, kind == BID
    of_person = drawn(numbers, 9)
    emails = [short(drawn(numbers, salt), most, person) for salt, most in ((10, 7), (11, 5))]
    digits = [drawn(numbers, 12) // 10_000**group % 10_000 for group in range(4)]
    cards = [pc.utf8_lpad(pa.array(each, mask=~person).cast(pa.string()), 4, "0") for each in digits]
    channel, url = channels_and_urls(drawn(numbers, 13), bid)
    texts = {
        "name": pc.binary_join_element_wise(
            _named(_FIRST, of_person, person), _named(_LAST, of_person >> 8, person), " "
        ),
        "email_address": pc.binary_join_element_wise(pc.binary_join_element_wise(*emails, "@"), ".com", ""),
        "credit_card": pc.binary_join_element_wise(*cards, " "),
        "city": _named(_CITIES, of_person >> 16, person),
        "state": _named(_STATES, of_person >> 24, person),
        "item_name": short(drawn(numbers, 14), 20, auction),
        "description": short(drawn(numbers, 15), 100, auction),
        "channel": channel,
        "url": url,
    }
    fixed = np.array([8, 48, 32])[kind]  # bytes of the numbers
    counted = [name for name in texts if name not in ("channel", "url")]
    sizes = [pc.fill_null(pc.binary_length(texts[name]), 0).to_numpy(zero_copy_only=False) for name in counted]
    rest = fixed + np.sum(sizes, axis=0)
    return {**texts, "extra": extra(drawn(numbers, 16), rest.astype(np.int64), np.array(_BYTES)[kind])}


def _column(values: Ints, absent: Bools | None) -> pa.Array:
    return pa.array(values, mask=absent)


def _named(names: tuple[str, ...], draw: Ints, present: Bools) -> pa.Array:
    """An entry of `names` per row; null where not `present`."""
    indices = pa.array((draw % len(names)).astype(np.int32), mask=~present)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names)).cast(pa.string())
