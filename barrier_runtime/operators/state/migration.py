"""Values of an earlier version of a program, converted to this version by the user's functions.

    migrate=[first, second]     a value of version 0 goes through both, one of version 1 through the second
    C1 · 56 ('V') · version · value     as it is stored; of version 0 the value alone

The first read of an entry converts the entry, which is written in the new form (`StateTable.made_new`). Entries of
broadcast state are converted at each read, so the functions must have no side effects.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from barrier_runtime.operators.state.described_types import Renamed, as_fields, by_new_names, decoder_of
from barrier_runtime.operators.user_code import function_name, said
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import shortened
from barrier_runtime.state.values.table import MadeNew

Migrate: TypeAlias = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]

_MARK = b"\xc1V"
_HEAD = 3
_MOST = 255

_plain = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder(enc_hook=as_fields).encode


def check_migrate(migrate: Any, says: str) -> tuple[Callable[[Any], Any], ...]:
    if migrate is None:
        return ()
    functions = tuple(migrate) if isinstance(migrate, list | tuple) else (migrate,)
    for function in functions:
        if not callable(function):
            raise InvalidJob(
                f"{says} migrate={migrate!r}: pass a function of the old value that returns the new one, or a list of "
                "them, one for each change since the first version"
            )
    if len(functions) > _MOST:
        raise InvalidJob(f"{says} migrate= has {len(functions)} functions, more than {_MOST}: use a new state name")
    return functions


def version_encoder(encode: Callable[[Any], bytes], version: int) -> Callable[[Any], bytes]:
    if not version:
        return encode
    mark = _MARK + bytes([version])

    def encoded(value: Any) -> bytes:
        return mark + encode(value)

    return encoded


def without_version(data: bytes) -> bytes:
    return data[_HEAD:] if data[:2] == _MARK else data


def migrating_decoder(
    decode: Callable[[bytes], Any],
    renamed: Sequence[Renamed],
    functions: Sequence[Callable[[Any], Any]],
    where: str,
    made_new: MadeNew,
) -> Callable[[bytes], Any]:
    """Returns a decoder for values of all versions; `decode` reads values of this version.
    `renamed`: by version, this version last. The decoder raises `InvalidJob` for a value that a function refuses."""
    now = by_new_names(decode, renamed[-1])
    if not functions:
        return now
    steps = [_Step(function, names, where) for function, names in zip(functions, renamed, strict=False)]

    def decoded(data: bytes) -> Any:
        version = 0
        if data[:2] == _MARK:
            version, data = data[2], data[_HEAD:]
        if version < len(steps):
            made_new.count += 1
        for step in steps[version:]:
            data = step(data)
        return now(data)

    return decoded


class _Step:
    def __init__(self, function: Callable[[Any], Any], names: Mapping[str, str | None], where: str) -> None:
        self._function = function
        self._where = f"{where}: {function_name(function)} in migrate="
        expected = _parameter_type(function)
        try:
            read = _plain if expected is None else decoder_of(expected).decode
        except TypeError as error:
            raise InvalidJob(
                f"{self._where} takes {expected!r}, which cannot be read ({error}): annotate the old class, or nothing "
                "to get dicts, lists and scalars"
            ) from error
        self._read = by_new_names(read, names)

    def __call__(self, data: bytes) -> bytes:
        try:
            old = self._read(data)
        except msgspec.MsgspecError as error:
            raise InvalidJob(
                f"{self._where} was not given the stored value {_shown(data)}, which does not fit its parameter "
                f"({error}): annotate it as the value was, or not at all"
            ) from error
        try:
            new = self._function(old)
        except Exception as error:
            raise InvalidJob(
                f"{self._where} raised {type(error).__name__}: {said(error)}, for the stored value {_shown(data)}: "
                "let it take every value of the version before"
            ) from error
        if new is None:
            raise InvalidJob(f"{self._where} returned None for the stored value {_shown(data)}: return the new value")
        try:
            return _encode(new)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidJob(
                f"{self._where} returned {type(new).__name__}, which cannot be written ({error}): return the new "
                "value, or a dict of its fields"
            ) from error


def _parameter_type(function: Callable[[Any], Any]) -> Any:
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function)
    except (TypeError, ValueError, NameError):
        return None
    expected = hints.get(parameters[0].name) if parameters else None
    return None if expected is Any else expected


def _shown(data: bytes) -> str:
    return shortened(repr(_plain(data)))
