"""A histogram of latencies in the layout and encoding of HdrHistogram: 1 µs to 1 h, three significant digits.

Its text is what the libraries of that name write and read (V2, compressed, base64), so heartbeats of other releases are
understood, and anybody's tools read ours. The library for Python is not used: it comes with packages that nobody who
runs a job wants, and a program `dump_hdrh`. Of a histogram only what was counted is kept, so a few hundred numbers at
most times, of the 23,552 that there could be.

Value `v` has the index `(b << 10) + (v >> b)`, `b` being the bits of `v` above eleven; up to 2,047 that is `v` itself.
"""

import base64
import struct
import zlib
from collections.abc import Iterable
from typing import TypeAlias

Counts: TypeAlias = dict[int, int]  # by index

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3
INDICES = 23_552
HALF_BITS = 10
COMPRESSED, PLAIN = 0x1C849304 | 0x10, 0x1C849303 | 0x10  # of the second version
OUTER = struct.Struct(">ii")  # cookie, bytes that follow
HEAD = struct.Struct(">iiiiqqd")  # cookie, bytes of counts, offset, digits, lowest, highest, ratio
_MOST_BYTES = 1 << 20


def lowest_of(index: int) -> int:
    """The least value with this index."""
    shift = max(0, (index >> HALF_BITS) - 1)
    return (index - (shift << HALF_BITS)) << shift


def highest_of(index: int) -> int:
    """The greatest value with this index."""
    return lowest_of(index + 1) - 1


def decode(text: str) -> Counts:
    """Raises `ValueError` for what is no such histogram."""
    try:
        data = base64.b64decode(text, validate=True)
        cookie, length = OUTER.unpack_from(data)
        if cookie != COMPRESSED or length != len(data) - OUTER.size:
            raise ValueError("it is not a compressed histogram")
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(data[OUTER.size :], _MOST_BYTES)
        cookie, size, offset, digits, lowest, highest, _ = HEAD.unpack_from(plain)
    except (zlib.error, struct.error) as error:
        raise ValueError(str(error)) from error
    if (cookie, offset, digits, lowest, highest) != (PLAIN, 0, SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US):
        raise ValueError("it is a histogram of another kind")
    if size != len(plain) - HEAD.size:
        raise ValueError("it is cut off")
    return _counts(plain[HEAD.size :])


def _counts(body: bytes) -> Counts:
    counts: Counts = {}
    index = value = shift = 0
    for byte in body:
        if byte < 0x80 and not shift and not byte & 1:  # a count below 64, as most are
            if byte:
                counts[index] = byte >> 1
            index += 1
            continue
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > 56:
                break
            continue
        if value & 1:
            index += (value + 1) >> 1  # so many zeros
        else:
            counts[index] = value >> 1
            index += 1
        value = shift = 0
    if shift or index > INDICES:
        raise ValueError("its counts are damaged")
    return counts


def summed(histograms: Iterable[Counts]) -> list[int]:
    """Counts of all of them by index, up to the highest that has any."""
    every = [each for each in histograms if each]
    counts = [0] * (1 + max((max(each) for each in every), default=-1))
    for each in every:
        for index, count in each.items():
            counts[index] += count
    return counts
