"""Kafka records of the real-time workloads: 1,200 bytes of text, keyed by the intended emission (ns) as text.

Row i has the key of row i of `events`: eight digits, followed by filler. The key of a record passes through every
engine unchanged and names the row in the output topic.
"""

import numpy as np

from benchmarks import events

VALUE_BYTES = 1_200
NAMES = 10_000  # rows of the static table
ID_DIGITS = 8
_FILLER = "abcdefghijklmnopqrstuvwxyz"
_REST = (_FILLER * (VALUE_BYTES // len(_FILLER) + 1))[: VALUE_BYTES - ID_DIGITS]


def value_of(key: int) -> str:
    return f"{key:0{ID_DIGITS}d}{_REST}"


def static_table() -> list[dict[str, str]]:
    """Rows of the static table: `id` is the beginning of a value."""
    return [{"id": f"{number:0{ID_DIGITS}d}", "name": f"name-{number}"} for number in range(NAMES)]


def as_records(numbers: events.Ints, emitted_ns: events.Ints, keys: int) -> list[dict[str, bytes]]:
    """Messages of rows `numbers`, due at `emitted_ns`, for the client's `produce_batch`."""
    picked = events.columns(np.asarray(numbers), emitted_ns, keys)[0].tolist()
    return [
        {"key": str(emitted).encode(), "value": value_of(key).encode()}
        for key, emitted in zip(picked, emitted_ns.tolist(), strict=True)
    ]
