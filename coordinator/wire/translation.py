"""Messages of the previous protocol version, for slots of an upgraded coordinator. Pure.

A release that changes a message raises `PROTOCOL_VERSION`, keeps the version before in `ACCEPTED_PROTOCOLS`, and adds
the changed messages here. A slot always speaks the protocol of its own release.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

Fields = dict[str, Any]
TAG = "type"


@dataclass(frozen=True)
class Translation:
    """`to_slot`: fields of this release -> fields of the version before; None: the slot needs no such
    message. `to_coordinator`: the reverse.
    """

    to_slot: Mapping[str, Callable[[Fields], Fields | None]] = field(default_factory=dict)
    to_coordinator: Mapping[str, Callable[[Fields], Fields]] = field(default_factory=dict)


TRANSLATIONS: dict[int, Translation] = {}  # by version; every accepted version besides the newest

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Fields)


def for_slot(body: bytes, version: int) -> bytes | None:
    fields = _DECODER.decode(body)
    change = TRANSLATIONS[version].to_slot.get(fields[TAG])
    if change is None:
        return body
    changed = change(fields)
    return None if changed is None else _ENCODER.encode(changed)


def from_slot(body: bytes | memoryview, version: int) -> bytes | memoryview:
    fields = _DECODER.decode(body)
    change = TRANSLATIONS[version].to_coordinator.get(fields.get(TAG, ""))
    return body if change is None else _ENCODER.encode(change(fields))
