"""Guesses types of CSV columns and checks later values against the guess.

A column is guessed as numbers or times only if each text is the usual form of its value: `007`, `+49301234567`, `1.10`,
`12e3` and `12345678901234567890` stay text. The form of times may vary (`T` or a blank, trailing zeros, the zone's
offset).
"""

import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.data.values.text_columns import TextMisfit, is_kept, type_of_times

_BOOLEANS = frozenset(("true", "false"))
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_NO_NUMBERS = frozenset(("nan", "inf", "-inf"))
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_LONG = 18  # characters; a float keeps the 17 digits of a shorter number
_MANY = 64
_0, _9, _MINUS, _E = b"09-e"


def guessed_type(texts: pa.Array, decimal_point: str) -> pa.DataType | None:
    values = {text for text in pc.unique(texts).to_pylist() if text is not None}
    if not values:
        return None
    if values <= _BOOLEANS:
        return pa.bool_()
    if all(map(_WHOLE.fullmatch, values)) and all(-(2**63) <= int(value) < 2**63 for value in values):
        return pa.int64()
    if all(is_float(value, decimal_point) for value in values) and not values <= _NO_NUMBERS:
        return pa.float64()
    if all(map(_CLOCK.fullmatch, values)):
        return pa.time32("s") if is_kept(values, pa.time32("s")) else pa.string()
    return type_of_times(values) or pa.string()


def is_float(text: str, decimal_point: str = ".") -> bool:
    if decimal_point != ".":
        if "." in text:
            return False
        text = text.replace(decimal_point, ".")
    if text in _NO_NUMBERS or text in ("0", "-0"):
        return True
    try:
        number = float(text)
    except ValueError:
        return False
    written = repr(number)
    if text == written:
        return True
    if "e" in text:
        return bool(text == pa.array([number]).cast(pa.string())[0].as_py())
    return _WHOLE.fullmatch(text) is not None and "inf" not in written and Decimal(text) == Decimal(written)


def is_checked(kind: pa.DataType) -> bool:
    return bool(types.is_int64(kind) or types.is_float64(kind))


def refuse_unwritable(texts: pa.Array, kind: pa.DataType, decimal_point: str) -> None:
    is_written: Callable[[str], bool]
    if types.is_boolean(kind):
        rows, is_written = list(range(len(texts))), _BOOLEANS.__contains__
    elif types.is_int64(kind):
        rows, is_written = _suspects(texts, True, decimal_point), lambda text: _WHOLE.fullmatch(text) is not None
    elif types.is_float64(kind):
        rows = _unequal(texts, _suspects(texts, False, decimal_point))
        is_written = partial(is_float, decimal_point=decimal_point)
    else:
        return
    for row in rows:
        text = texts[row].as_py()
        if text is not None and not is_written(text):
            raise TextMisfit(
                row,
                text,
                f"{text!r} would not be kept as {kind}, which was guessed from the first rows: declare the column's "
                'type in types= or schema=, such as "string" for text',
            )


def _unequal(texts: pa.Array, rows: list[int]) -> list[int]:
    if len(rows) < _MANY:
        return rows
    chosen = texts.take(pa.array(rows))
    try:
        written = chosen.cast(pa.float64()).cast(pa.string())
    except pa.ArrowInvalid:
        return rows
    return np.asarray(rows)[np.flatnonzero(pc.not_equal(written, chosen).fill_null(False))].tolist()  # type: ignore[no-any-return]


def _suspects(texts: pa.Array, whole: bool, decimal_point: str) -> list[int]:
    valid = texts.drop_null() if texts.null_count else texts
    if not len(valid):
        return []
    offsets = np.frombuffer(valid.buffers()[1], np.int32)[valid.offset : valid.offset + len(valid) + 1]
    text = np.frombuffer(valid.buffers()[2], np.uint8)
    lengths = np.diff(offsets)
    if not lengths.all():
        return list(range(len(texts)))
    first = text[offsets[:-1]]
    odd = first <= _0
    if not whole:
        last = text[offsets[1:] - 1]
        usual = (last > _0) & (last <= _9) & (lengths <= _LONG)
        if usual.all() and not odd.any() and text[offsets[0] : offsets[-1]].max() <= _9:
            return []
    if odd.any():
        at = np.flatnonzero(odd)
        odd[at] = ~_is_usual(text, offsets[at], offsets[at + 1], whole, ord(decimal_point))
    if not whole:
        odd |= ~usual & (last != _0)
        odd |= lengths > _LONG
        ends = np.flatnonzero(last == _0)
        if len(ends):
            with_point = pc.match_substring(valid.take(pa.array(ends)), decimal_point).to_numpy(zero_copy_only=False)
            odd[ends[with_point]] = True
        if ((text[offsets[0] : offsets[-1]] | 32) == _E).any():
            odd |= pc.match_substring(valid, "e", ignore_case=True).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(odd)
    if texts.null_count and len(rows):
        rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))[rows]
    found: list[int] = rows.tolist()
    return found


def _is_usual(
    text: npt.NDArray[np.uint8], begins: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], whole: bool, point: int
) -> npt.NDArray[np.bool_]:
    """True for `0`, a minus before a digit 1 to 9, or (floats only) a zero before the point."""
    first = text[begins]
    second, third = (text[np.minimum(begins + place, ends - 1)] for place in (1, 2))
    negative = first == _MINUS
    usual: npt.NDArray[np.bool_] = (negative & (second > _0) & (second <= _9)) | ((first == _0) & (ends - begins == 1))
    if not whole:
        usual |= (np.where(negative, second, first) == _0) & (np.where(negative, third, second) == point)
    return usual
