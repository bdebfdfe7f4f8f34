"""The lease of a job as it is stored: one object beside the log, which names the daemon that is expected to lead.

`server/lease` judges it; checks of a store read it.
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
    leader: str  # daemon id: the same for a daemon that is started again at its address
    control: str  # "host:port" for slots
    http: str  # url of its REST interface
    position: int
    sequence: int  # rises with every write, so that the content changes
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEASE_MS)]
    released: bool = False  # given back in order: anyone may lead at once


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
    """The lease stored under `name`. Raises `InvalidJob` for one of another version, `Corrupt` for anything else; none
    is a reason to stop leading: see `server/lease`."""
    return _DECODER.decode(data, name)
