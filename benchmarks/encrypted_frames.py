"""Processor time of data frames between slots, in plaintext and encrypted, in turn. No sockets.

    python -m benchmarks.encrypted_frames

Prints a table: bytes of an element in `FrameWriter`'s encoding, microseconds to encode and decode the element in
plaintext, and the additional microseconds of encryption.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from barrier_runtime.coordinator.wire.sealing import SealedFraming
from barrier_runtime.data.elements import Batch, Element, Watermark
from barrier_runtime.runtime.network.connection import PART_BYTES, Chunks, encrypted
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from benchmarks.machine import describe

_ROUNDS = 9
_KEY = bytes(32)
Wire = Callable[[Chunks], bytes]


def _rows(number: int) -> Batch:
    columns = {
        "key": pa.array(np.arange(number)),
        "value": pa.array(np.random.default_rng(1).random(number)),
        "name": pa.array([f"name-{row}" for row in range(number)]),
    }
    return Batch(pa.record_batch(columns), 1)


CASES: tuple[tuple[str, Element, int], ...] = (
    ("watermark", Watermark(1), 4_000),
    ("batch of 5 rows", _rows(5), 2_000),
    ("200 rows", _rows(200), 1_000),
    ("2,000 rows", _rows(2_000), 300),
    ("16,000 rows", _rows(16_000), 60),
)


def _plaintext() -> Wire:
    return lambda chunks: b"".join(chunks)


def _encrypted() -> Wire:
    sender, receiver = (SealedFraming(_KEY, _KEY, PART_BYTES) for _ in range(2))
    return lambda chunks: b"".join(payload for frame in encrypted(sender, chunks) for payload in receiver.feed(frame))


def _us(wire: Wire, element: Element, times: int) -> float:
    writer, reader = FrameWriter(), FrameReader()
    list(reader.feed(wire(writer.encode(element))))  # the schema travels once
    began = time.process_time()
    for _ in range(times):
        list(reader.feed(wire(writer.encode(element))))
    return (time.process_time() - began) / times * 1e6


def main() -> None:
    print("| element | bytes | plaintext, us | encryption adds, us |\n|---|---|---|---|")
    for name, element, times in CASES:
        size = sum(map(len, FrameWriter().encode(element)))
        rounds = [(_us(_plaintext(), element, times), _us(_encrypted(), element, times)) for _ in range(_ROUNDS)]
        plaintext, both = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {name} | {size:,} | {plaintext:.1f} | {both - plaintext:.1f} |", flush=True)
    print(describe())


if __name__ == "__main__":
    main()
