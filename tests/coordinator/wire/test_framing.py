"""The MAC of a frame is HMAC-SHA256 of sequence and payload."""

import hmac
import struct

from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.wire.framing import Macs


@given(st.binary(min_size=16, max_size=64), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_macs_are_those_of_the_standard_library(key: bytes, sequence: int, payload: bytes) -> None:
    macs = Macs(key)
    for _ in range(2):
        expected = hmac.digest(key, struct.pack(">Q", sequence) + payload, "sha256")[:16]
        assert macs.of(sequence, payload) == macs.of(sequence, memoryview(payload)) == expected
