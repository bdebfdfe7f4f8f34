"""A slot's histogram of latencies as the text that `coordinator/status/latency` reads, whose layout it has."""

import base64
import zlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.coordinator.status.latency import (
    COMPRESSED,
    HALF_BITS,
    HEAD,
    HIGHEST_US,
    LOWEST_US,
    OUTER,
    PLAIN,
    SIGNIFICANT_DIGITS,
)

Ints: TypeAlias = npt.NDArray[Any]
_LIMITS = np.array([1 << 7 * places for places in range(1, 8)], np.uint64)  # of so many bytes


def indices_of(us: Ints) -> Ints:
    """By value (us), from 0 to `HIGHEST_US`."""
    shifts = np.maximum(np.frexp(us.astype(np.float64))[1] - 11, 0)
    indices: Ints = (shifts << HALF_BITS) + (us >> shifts)
    return indices


def encode(counts: Ints) -> str:
    """`counts`: by index, all below 2**54."""
    indices = np.flatnonzero(counts)
    zeros = np.diff(indices, prepend=-1) - 1  # before each; a negative number stands for so many
    told = np.column_stack((-zeros, counts[indices])).ravel()
    body = _packed(told[told != 0])
    head = HEAD.pack(PLAIN, len(body), 0, SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US, 1.0)
    packed = zlib.compress(head + body)
    return base64.b64encode(OUTER.pack(COMPRESSED, len(packed)) + packed).decode("ascii")


def _packed(numbers: Ints) -> bytes:
    """Zigzag, seven bits a byte; eight bytes at most."""
    values = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    lengths = np.searchsorted(_LIMITS, values, side="right") + 1
    ends = np.cumsum(lengths)
    data = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(lengths.max(initial=0))):
        longer = lengths > place
        seven = (values[longer] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
        data[(ends - lengths)[longer] + place] = seven | np.where(lengths[longer] > place + 1, 0x80, 0).astype(np.uint8)
    return data.tobytes()
