"""Texts of Nexmark's events: letters as a function of a number, made for many rows at once. Pure.

A text is a part of a fixed sequence, from a place that the row's number determines, so that 100 MB of texts are one
look-up. On average 1 of 13 characters of a short text is a separator, as in the benchmark.
"""

import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.events import mixed

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LETTERS = 1 << 16  # of the sequence
_SHORTEST = 3
CHANNELS = 10_000  # in addition to the four channels of half of the bids
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def drawn(numbers: Ints, salt: int) -> Ints:
    """63 bits per number, a different sequence for each salt (0 … 31)."""
    bits: Ints = (mixed(numbers * 32 + salt) >> np.uint64(1)).astype(np.int64)
    return bits


@functools.cache
def _sequence(separator: str) -> npt.NDArray[np.uint8]:
    """`separator`: a character, or "" for letters alone."""
    draw = drawn(np.arange(2 * _LETTERS), 0)
    letters = (ord("a") + draw % 26).astype(np.uint8)
    if separator:
        letters[draw // 26 % 13 == 0] = ord(separator)
    return letters


def exact(draw: Ints, lengths: Ints, present: Bools | None = None, separator: str = "") -> pa.Array:
    """A text of `lengths` characters per row; null where not `present`.

    `draw` determines the text's place. Lengths are less than 65,536; all texts together less than 2 GB."""
    if present is not None:
        lengths = np.where(present, lengths, 0)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    places = np.repeat(draw % _LETTERS - begins, lengths) + np.arange(ends[-1] if len(ends) else 0)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    data = pa.py_buffer(_sequence(separator)[places])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), data, validity)


def short(draw: Ints, most: int, present: Bools | None = None, separator: str = " ") -> pa.Array:
    """Between 3 and `most` - 1 characters, without separators at the ends."""
    lengths = _SHORTEST + (draw >> 20) % (most - _SHORTEST)
    return pc.utf8_trim(exact(draw, lengths, present, separator), characters=" ")


def extra(draw: Ints, rest: Ints, average: Ints) -> pa.Array:
    """Padding from `rest` bytes of an event to `average` bytes, ±20 %; empty if nothing is missing."""
    lacks = np.maximum(0, average - rest)
    spread = np.floor(lacks * 0.2 + 0.5).astype(np.int64)
    lengths = lacks - spread + (draw >> 20) % np.maximum(1, 2 * spread)
    return exact(draw, lengths)


def channels_and_urls(draw: Ints, present: Bools) -> tuple[pa.Array, pa.Array]:
    """Channel and url of each row; null where not `present`.

    Half of the rows are in four channels, each with a single address. The other rows are in 10,000 channels, and nine
    tenths of the addresses of these channels name the channel's number."""
    names, urls = _channels()
    hot = draw % 2 == 0
    which = np.where(hot, (draw >> 8) % len(HOT_CHANNELS), len(HOT_CHANNELS) + (draw >> 8) % CHANNELS)
    indices = pa.array(which, mask=~present)
    return names.take(indices), urls.take(indices)


@functools.cache
def _channels() -> tuple[pa.Array, pa.Array]:
    total = len(HOT_CHANNELS) + CHANNELS
    draw = drawn(np.arange(total), 31)
    folders = [short(drawn(draw, salt), 5, separator="_") for salt in (28, 29, 30)]
    base = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    ids = ["", *(str(int(f"{number:032b}"[::-1], 2)) for number in range(CHANNELS))]
    named = np.concatenate([np.zeros(len(HOT_CHANNELS), np.int64), np.arange(1, CHANNELS + 1)])
    named = np.where((draw >> 40) % 10 > 0, named, 0)
    id_of = pa.array(ids).take(pa.array(named))
    suffix = pc.if_else(pa.array(named > 0), pc.binary_join_element_wise("&channel_id=", id_of, ""), "")
    names = pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))])
    return names, pc.binary_join_element_wise(base, suffix, "")
