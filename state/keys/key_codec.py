"""Encodes keys, tuples of scalars, as bytes and back, without a schema. Byte order is key order.

Each field begins with a tag; tags order the kinds. Strings end with a zero byte; a zero inside becomes 00 FF, and no
tag is FF, so a shorter string comes first.

    00      end of a string      05 None            0A False   0B True
    14 int, 8 bytes, sign flipped       15 int above 2**63-1, 8 bytes
    20 float, IEEE-754, sign-adjusted   30 str, UTF-8        31 bytes
    40 date, 4 bytes of days            41 datetime without, 42 with time zone (8 bytes of microseconds, UTC)
"""

import datetime as dt
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.errors import Corrupt, InvalidJob

Key = tuple[Any, ...]
Ints: TypeAlias = npt.NDArray[np.int64]

INT_TAG = 0x14
INT_BYTES = 9
_INT_FIELD = np.dtype([("tag", "u1"), ("value", ">u8")])
_MANY = 16  # keys from which encoding field by field is faster
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)

_pack_wide = struct.Struct(">BQ").pack
_pack_narrow = struct.Struct(">BI").pack
_pack_double = struct.Struct(">d").pack
_read_wide = struct.Struct(">Q").unpack_from
_read_narrow = struct.Struct(">I").unpack_from
_read_double = struct.Struct(">d").unpack


def encode_key(key: Key) -> bytes:
    """Raises `InvalidJob` for a field of another type."""
    try:
        if len(key) == 1:
            return _ENCODERS[type(key[0])](key[0])
        return b"".join([_ENCODERS[type(field)](field) for field in key])
    except KeyError:
        return b"".join([_encoder_of(field)(field) for field in key])


def encode_keys(keys: Sequence[Key]) -> list[bytes]:
    if len(keys) < _MANY or len(set(map(len, keys))) > 1 or not keys[0]:
        return [encode_key(key) for key in keys]
    first, *others = [_encoded_field(values) for values in zip(*keys, strict=True)]
    for field in others:
        first = list(map(operator.add, first, field))
    return first


def decode_key(data: bytes, start: int = 0) -> Key:
    """Raises `Corrupt` for bytes that `encode_key` never makes."""
    fields = []
    end = len(data)
    try:
        while start < end:
            value, start = _DECODERS[data[start]](data, start + 1)
            fields.append(value)
    except (KeyError, struct.error, ValueError, OverflowError) as error:
        raise Corrupt(
            f"key bytes {data[:64].hex()} are not an encoded key ({error}): something else wrote this snapshot; "
            "restore from another checkpoint"
        ) from error
    return tuple(fields)


def decode_columns(keys: Sequence[bytes], start: int = 0) -> list[list[Any] | Ints]:
    """By column; all keys have the same number of fields."""
    columns: list[list[Any] | Ints] = []
    content = np.frombuffer(b"".join(keys), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
    begins = np.concatenate(([0], ends[:-1]))
    at = begins + start
    try:
        while (at < ends).any():
            if (content[at] == INT_TAG).all() and (at + INT_BYTES <= ends).all():
                wide = content[at[:, None] + np.arange(1, INT_BYTES)].view(">u8")[:, 0]
                columns.append((wide ^ np.uint64(_SIGN)).astype(np.int64))
                at = at + INT_BYTES
            else:
                places = zip(keys, (at - begins).tolist(), strict=True)
                values, behind = zip(*[_DECODERS[key[place]](key, place + 1) for key, place in places], strict=True)
                columns.append(list(values))
                at = begins + np.array(behind)
    except (KeyError, IndexError, struct.error, ValueError, OverflowError):
        at = begins
    if (at == ends).all():
        return columns
    return [list(field) for field in zip(*[decode_key(key, start) for key in keys], strict=True)]


def _encoded_field(values: Sequence[Any]) -> list[bytes]:
    """Equal values, such as a day, are encoded once."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            wide = np.array(values, np.int64)
        except OverflowError:
            return list(map(_encode_int, values))
        encoded = np.empty(len(wide), _INT_FIELD)
        encoded["tag"], encoded["value"] = INT_TAG, wide.view(np.uint64) ^ np.uint64(_SIGN)
        return [field for (field,) in struct.iter_unpack(f"{INT_BYTES}s", encoded.tobytes())]
    if kinds == {str}:
        distinct = list(set(values))
        if 2 * len(distinct) > len(values):
            return _encoded_texts(values)
        encoded_of = dict(zip(distinct, _encoded_texts(distinct), strict=True))
        return list(map(encoded_of.__getitem__, values))
    return [encode_key((value,)) for value in values]


def _encoded_texts(values: Sequence[str]) -> list[bytes]:
    together = "\0".join(values)
    if together.count("\0") == len(values) - 1:  # no value contains a zero
        try:
            return [b"\x30" + data + b"\0" for data in together.encode().split(b"\0")]
        except UnicodeEncodeError:
            pass  # raised below, with the value
    return list(map(_encode_str, values))


def _encode_int(value: int) -> bytes:
    if -_SIGN <= value < _SIGN:
        return _pack_wide(INT_TAG, value + _SIGN)
    if _SIGN <= value <= _ALL:
        return _pack_wide(0x15, value)
    raise InvalidJob(f"key field {value} does not fit in 64 bits: use a string as the key")


def _encode_float(value: float) -> bytes:
    if value != value:
        raise InvalidJob("NaN cannot be part of a key, as it is not equal to itself: filter it or replace it by null")
    bits = _read_wide(_pack_double(value + 0.0))[0]
    return _pack_wide(0x20, bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _encode_str(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(f"key field {value!r} is not valid text ({error.reason}): clean it before key_by") from error
    if b"\0" in data:
        data = data.replace(b"\0", b"\0\xff")
    return b"\x30" + data + b"\0"


def _encode_bytes(value: bytes) -> bytes:
    return b"\x31" + value.replace(b"\0", b"\0\xff") + b"\0"


def _encode_datetime(value: dt.datetime) -> bytes:
    if value.tzinfo is None:
        return _pack_wide(0x41, (value - _EPOCH) // _MICROSECOND + _SIGN)
    return _pack_wide(0x42, (value - _EPOCH_UTC) // _MICROSECOND + _SIGN)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x05",
    bool: lambda value: b"\x0b" if value else b"\x0a",
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    dt.date: lambda value: _pack_narrow(0x40, value.toordinal() - _EPOCH_DAY + (1 << 31)),
    dt.datetime: _encode_datetime,
}


def _encoder_of(value: Any) -> Callable[[Any], bytes]:
    if type(value) in _ENCODERS:
        return _ENCODERS[type(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return lambda scalar: _ENCODERS[type(scalar.item())](scalar.item())
    for kind in (dt.datetime, dt.date, bool, int, float, str, bytes):  # datetime before date, bool before int
        if isinstance(value, kind):
            return _ENCODERS[kind]
    raise InvalidJob(
        f"a value of type {type(value).__name__} cannot be part of a key: "
        "use int, str, bytes, bool, float, date or datetime"
    )


def _decode_float(data: bytes, at: int) -> tuple[Any, int]:
    bits = _read_wide(data, at)[0]
    bits = bits & ~_SIGN if bits & _SIGN else bits ^ _ALL
    return _read_double(bits.to_bytes(8, "big"))[0], at + 8


def _until_end(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(0, at)
    if data[end + 1 : end + 2] != b"\xff":
        return data[at:end], end + 1
    while data[end + 1 : end + 2] == b"\xff":
        end = data.index(0, end + 2)
    return data[at:end].replace(b"\0\xff", b"\0"), end + 1


def _decode_str(data: bytes, at: int) -> tuple[Any, int]:
    raw, at = _until_end(data, at)
    return raw.decode(), at


_DECODERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0x05: lambda data, at: (None, at),
    0x0A: lambda data, at: (False, at),
    0x0B: lambda data, at: (True, at),
    INT_TAG: lambda data, at: (_read_wide(data, at)[0] - _SIGN, at + 8),
    0x15: lambda data, at: (_read_wide(data, at)[0], at + 8),
    0x20: _decode_float,
    0x30: _decode_str,
    0x31: _until_end,
    0x40: lambda data, at: (dt.date.fromordinal(_read_narrow(data, at)[0] - (1 << 31) + _EPOCH_DAY), at + 4),
    0x41: lambda data, at: (_EPOCH + _MICROSECOND * (_read_wide(data, at)[0] - _SIGN), at + 8),
    0x42: lambda data, at: (_EPOCH_UTC + _MICROSECOND * (_read_wide(data, at)[0] - _SIGN), at + 8),
}
