"""Stored lease of a job: an object beside the log that names the expected leader.

`server/lease` judges the lease; checks of a store read it.
"""

from typing import Annotated

import msgspec

from barrier_runtime.coordinator.option_table import DAEMON_OPTIONS
from barrier_runtime.state.versioned import Format, VersionedDecoder

LEASE_VERSION = 1
MAX_LEASE_MS = round(DAEMON_OPTIONS["lease"].stored(DAEMON_OPTIONS["lease"].high))


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int = LEASE_VERSION
    job: str
    run_id: str
    leader: str  # daemon id: the same after a restart of the daemon at the same address
    control: str  # "host:port" for slots
    http: str  # URL of the REST interface
    position: int
    sequence: int  # rises with every write, so that the content changes
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEASE_MS)]
    released: bool = False  # given up in an orderly shutdown: any daemon may lead at once


_ENCODER = msgspec.json.Encoder(order="deterministic")
_FORMAT = Format(
    "lease {}",
    LEASE_VERSION,
    damaged="delete it, the leader writes it anew",
    newer="run the same release in all daemons of one storage; if no newer one runs any more, delete it",
)
_DECODER = VersionedDecoder(_FORMAT, msgspec.json.Decoder(Lease))


def encode_lease(lease: Lease) -> bytes:
    return _ENCODER.encode(lease)


def decode_lease(name: str, data: bytes) -> Lease:
    """Returns the lease `name`. Raises `InvalidJob` for another version, `Corrupt` for invalid bytes.

    Neither error is a reason to stop leading: see `server/lease`.
    """
    return _DECODER.decode(data, name)
