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
from collections.abc import Iterable, Mapping

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3
INDICES = 23_552
_EXACT = 2_047  # the highest value that has an index of its own; 11 bits
_HALF_BITS = 10
_HALF = 1 << _HALF_BITS
_COMPRESSED, _PLAIN = 0x1C849304 | 0x10, 0x1C849303 | 0x10  # of the second version
_OUTER = struct.Struct(">ii")  # cookie, bytes that follow
_HEAD = struct.Struct(">iiiiqqd")  # cookie, bytes of counts, offset, digits, lowest, highest, ratio
_MOST_BYTES = 1 << 20


def index_of(us: int) -> int:
    """Of a value from 0 to `HIGHEST_US`."""
    shift = (us | _EXACT).bit_length() - 11
    return (shift << _HALF_BITS) + (us >> shift)


def lowest_of(index: int) -> int:
    """The least value with this index."""
    shift = max(0, (index >> _HALF_BITS) - 1)
    return (index - (shift << _HALF_BITS)) << shift


def highest_of(index: int) -> int:
    """The greatest value with this index."""
    return lowest_of(index + 1) - 1


def encode(counts: Mapping[int, int]) -> str:
    """`counts`: by index, none of them 0."""
    body = bytearray()
    reached = 0
    for index in sorted(counts):
        if index > reached:
            _append(body, reached - index)  # so many zeros
        _append(body, counts[index])
        reached = index + 1
    if not body:
        _append(body, 0)
    head = _HEAD.pack(_PLAIN, len(body), 0, SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US, 1.0)
    packed = zlib.compress(head + body)
    return base64.b64encode(_OUTER.pack(_COMPRESSED, len(packed)) + packed).decode("ascii")


def decode(text: str) -> dict[int, int]:
    """Counts by index. Raises `ValueError` for what is no such histogram."""
    try:
        data = base64.b64decode(text, validate=True)
        cookie, length = _OUTER.unpack_from(data)
        if cookie != _COMPRESSED or length != len(data) - _OUTER.size:
            raise ValueError("it is no compressed histogram")
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(data[_OUTER.size :], _MOST_BYTES)
        cookie, size, offset, digits, lowest, highest, _ = _HEAD.unpack_from(plain)
    except (zlib.error, struct.error) as error:
        raise ValueError(str(error)) from error
    if (cookie, offset, digits, lowest, highest) != (_PLAIN, 0, SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US):
        raise ValueError("it is a histogram of another kind")
    if size != len(plain) - _HEAD.size:
        raise ValueError("it is cut off")
    return _counts(plain[_HEAD.size :])


def _counts(body: bytes) -> dict[int, int]:
    counts: dict[int, int] = {}
    index = value = shift = 0
    for byte in body:
        value |= (byte if shift == 56 else byte & 0x7F) << shift  # a ninth byte is whole
        if byte & 0x80 and shift < 56:
            shift += 7
            continue
        number = (value >> 1) ^ -(value & 1)
        value = shift = 0
        if number < 0:
            index -= number
            continue
        if number:
            counts[index] = number
        index += 1
        if index > INDICES:
            break
    if shift or index > INDICES:
        raise ValueError("its counts are damaged")
    return counts


def _append(body: bytearray, number: int) -> None:
    """Zigzag, seven bits a byte; a ninth byte has eight."""
    value = (number << 1) ^ (number >> 63)
    for _ in range(8):
        if value < 0x80:
            body.append(value)
            return
        body.append(value & 0x7F | 0x80)
        value >>= 7
    body.append(value & 0xFF)


def summed(histograms: Iterable[Mapping[int, int]]) -> list[int]:
    """Counts of all of them by index, up to the highest that has any."""
    every = list(histograms)
    counts = [0] * (1 + max((max(each) for each in every if each), default=-1))
    for each in every:
        for index, count in each.items():
            counts[index] += count
    return counts
