"""Functions that Arrow lacks, or has slower; Arrow's engine calls them by name.

Importing this module registers the functions of whole columns. Functions of values are kernels: a kernel's full name
contains the types, and any process can `register` the kernel from the name alone. A pickled expression has only names,
so names and meanings never change.

`%` has the sign of the dividend, and is exact for doubles too. Releases of Arrow without a remainder use numpy's `fmod`
for doubles, and the quotient for whole numbers. Decimals always use the quotient.
"""

import decimal
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import MOST_DIGITS, Argument, Made, decimal_type, to_round
from barrier_runtime.data.sql.texts import WIDE

Kernel: TypeAlias = Callable[..., pa.Array]  # of the result's type and the columns of the arguments

_PREFIX = "barrier_runtime.rows."
_NAMES = re.compile(r"barrier_runtime\.rows\.\w+\.[0-9a-f]+")
_KERNELS: dict[str, Kernel] = {}
_registered: set[str] = set()


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    def added(function: Kernel) -> Kernel:
        assert name not in _KERNELS
        _KERNELS[name] = function
        return function

    return added


def value_kernel(name: str, function: Callable[..., Any]) -> None:
    """Adds a kernel that calls `function` per row; null if an argument is null."""

    def each(kind: pa.DataType, *columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return column([None if None in row else function(*row) for row in rows], kind)

    kernel(name)(each)


def call(name: str, kind: pa.DataType, *arguments: Argument) -> Made:
    types = pa.schema([("", each) for each in (kind, *(argument.type for argument in arguments))])
    full = f"{_PREFIX}{name}.{types.serialize().to_pybytes().hex()}"
    register(full)
    return pc.Expression._call(full, [argument.made for argument in arguments])


def kernels_of(expression: Made) -> list[str]:
    return _NAMES.findall(str(expression))


def register(full: str) -> None:
    if full in _registered:
        return
    name, _, types = full.removeprefix(_PREFIX).partition(".")
    kind, *given = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(types))).types
    function = _KERNELS[name]

    def computed(context: Any, *arguments: Any) -> pa.Array:
        return function(kind, *(_column(each, context.batch_length) for each in arguments))

    about = {"summary": name, "description": "see barrier_runtime/data/sql/kernels.py"}
    pc.register_scalar_function(computed, full, about, {f"argument_{at}": each for at, each in enumerate(given)}, kind)
    _registered.add(full)


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


_ARROW_HAS_IT = "remainder" in pc.list_functions()
_FMOD, _WHOLE_QUOTIENT = "barrier_runtime_fmod", "barrier_runtime.whole_quotient"
_EXACT_AS_DOUBLES = 14  # digits
_LEAST_SCALE = 6  # of a quotient of decimals, in Arrow
_EXACT = decimal.Context(prec=3 * WIDE.precision)


def remainder(left: Made, right: Made, kind: pa.DataType, by_arrow: bool = _ARROW_HAS_IT) -> Made:
    """Treats a decimal and a whole number as decimals."""
    if pa.types.is_floating(kind):
        return _of_arrow("remainder_checked" if by_arrow else _FMOD, left, right)
    if by_arrow and pa.types.is_integer(kind):  # the checked function refuses -1 under the lowest number
        return _of_arrow("remainder", left, right)
    if pa.types.is_integer(kind):
        right = pc.if_else(right == pc.scalar(-1), pc.scalar(pa.scalar(1, kind)), right)
    quotient = pc.divide_checked(left, right)
    if pa.types.is_decimal(kind):
        quotient = pc.trunc(quotient)
    return pc.subtract_checked(left, pc.multiply_checked(quotient, right))


def with_whole_digit(left: Argument, right: Argument) -> Argument:
    """Gives the quotient a digit before the point: Arrow truncates no other."""
    kind, divisor = left.type, right.type
    if not pa.types.is_decimal(kind) or kind.scale < kind.precision or kind.precision == MOST_DIGITS:
        return left
    if pa.types.is_decimal(divisor) and divisor.scale:
        return left
    return replace(left, made=to_round(left), type=pa.decimal128(kind.precision + 1, kind.scale))


def whole_quotient(left: Argument, right: Argument) -> Made:
    """Computes exactly; refuses quotients beyond 64 bits."""
    one, other = decimal_type(left), decimal_type(right)
    divided, divisor = _decimal(left, one), _decimal(right, other)
    scale = max(one.scale, other.scale)
    if all(kind.precision - kind.scale + scale <= _EXACT_AS_DOUBLES for kind in (one, other)):
        return pc.divide_checked(_all_digits(divided, scale), _all_digits(divisor, scale))
    scale = max(_LEAST_SCALE, one.scale + other.precision + 1)
    digits = one.precision - one.scale + other.scale + scale
    if digits > WIDE.precision:
        return _of_arrow(_WHOLE_QUOTIENT, divided.cast(WIDE), divisor.cast(WIDE))
    if digits > MOST_DIGITS:
        divided, divisor = (
            made.cast(pa.decimal256(kind.precision, kind.scale)) for made, kind in ((divided, one), (divisor, other))
        )
    return pc.trunc(pc.divide_checked(divided, divisor)).cast(pa.int64())


def _decimal(number: Argument, kind: pa.DataType) -> Made:
    if number.is_constant:  # Arrow requires as many digits as the constant's type may have
        return pc.scalar(pa.scalar(number.value, kind))
    return number.made if number.type == kind else number.made.cast(kind)


def _all_digits(number: Made, scale: int) -> Made:
    """Doubles of few digits are so close that rounding gives all digits."""
    return pc.round(pc.multiply(number.cast(pa.float64()), pc.scalar(10.0**scale))).cast(pa.int64())


def _of_arrow(function: str, *arguments: Made) -> Made:
    return pc.Expression._call(function, list(arguments))


def _fmod(context: Any, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    divided, divisor = (_column(each, context.batch_length) for each in (left, right))
    valid = divided.is_valid().to_numpy(zero_copy_only=False) & divisor.is_valid().to_numpy(zero_copy_only=False)
    values = divisor.fill_null(1.0).to_numpy(zero_copy_only=False)
    if not values[valid].all():
        raise pa.ArrowInvalid("divide by zero")
    with np.errstate(invalid="ignore"):
        found = np.fmod(divided.fill_null(0.0).to_numpy(zero_copy_only=False), np.where(valid, values, 1.0))
    return pa.array(found, mask=~valid)


def _wide_quotient(context: Any, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    """No type of Arrow's holds the intermediate value."""
    pairs = zip(*(_column(each, context.batch_length).to_pylist() for each in (left, right)), strict=True)
    try:
        return pa.array([_whole_quotient(*pair) for pair in pairs], pa.int64())
    except OverflowError as error:
        raise pa.ArrowInvalid("a quotient is beyond 64 bits") from error


def _whole_quotient(divided: decimal.Decimal | None, divisor: decimal.Decimal | None) -> int | None:
    if divided is None or divisor is None:
        return None
    if not divisor:
        raise pa.ArrowInvalid("divide by zero")
    return int(_EXACT.divide_int(divided, divisor))


def _column(given: pa.Array | pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(given, rows) if isinstance(given, pa.Scalar) else given


pc.register_scalar_function(
    _fmod,
    _FMOD,
    {"summary": "Remainder of doubles", "description": __doc__},
    {"dividend": pa.float64(), "divisor": pa.float64()},
    pa.float64(),
)
pc.register_scalar_function(
    _wide_quotient,
    _WHOLE_QUOTIENT,
    {"summary": "Whole quotient of decimals", "description": __doc__},
    {"dividend": WIDE, "divisor": WIDE},
    pa.int64(),
)


_Ints: TypeAlias = npt.NDArray[np.integer[Any]]
_COUNT, _SPLIT, _PART, _TIME_TEXT = (f"barrier_runtime.{name}" for name in ("count", "split", "part", "time_text"))
_PARTS = pa.dictionary(pa.int32(), pa.list_(pa.string()))
_LOOKED_AT, _FEW = 4_096, 0.6  # rows to sample, and the maximum share of different texts to encode
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int32)  # set bits of a byte
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS = {"ss": 1, "mm": 60, "HH": 3_600, "dd": 86_400}  # seconds during which the text of a time stays the same
_LEAST = 256  # rows from which examining times first is worthwhile
_SHOWN = "yyyy-MM-dd HH:mm:ss"  # Arrow's text of a time
TIME_PARTS = ("yyyy", "MM", "dd", "HH", "mm", "ss")


def how_many(text: pc.Expression, letter: str) -> pc.Expression:
    """Occurrences of `letter`, an ASCII letter, in each text."""
    return _call(_COUNT, text, letter)


def part(text: pc.Expression, separator: str, number: int) -> pc.Expression:
    """Part `number` of each text: from 1 on, or from -1 backwards; else empty.

    The split is computed once for several parts.
    """
    return _call(_PART, _call(_SPLIT, text, separator), number)


def time_text(time: pc.Expression, unit: str, pattern: str) -> pc.Expression:
    """Text of `time`, of that `unit` and without a zone. `pattern`: parts of `_SHOWN` with signs between."""
    return _call(f"{_TIME_TEXT}.{unit}", time, pattern)


def _call(name: str, column: pc.Expression, *given: Any) -> pc.Expression:
    return pc.Expression._call(name, [column, *map(pc.scalar, given)])


def _count(context: Any, text: Any, letter: Any) -> pa.Array:
    """Counts letters before each text's beginning; differences give the counts."""
    if not len(text):
        return pa.array([], pa.int32())
    offsets = np.frombuffer(text.buffers()[1], np.int32, len(text) + 1, text.offset * 4)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)[begin:end]
    words = np.zeros((end - begin) // 64 + 1, np.uint64)
    bits = np.packbits(data == ord(_constant(letter)), bitorder="little")
    words.view(np.uint8)[: len(bits)] = bits
    ones = _ones(words)
    before = np.cumsum(ones, dtype=np.int32) - ones
    word, bit = (offsets - begin) >> 6, ((offsets - begin) & 63).astype(np.uint64)
    below = _ones(words[word] & ((np.uint64(1) << bit) - np.uint64(1)))
    return pa.array(np.diff(before[word] + below).astype(np.int32), mask=_nulls(text))


def _ones(words: npt.NDArray[np.uint64]) -> _Ints:
    if hasattr(np, "bitwise_count"):  # since numpy 2
        return np.bitwise_count(words)
    ones: _Ints = _BITS[words.view(np.uint8)].reshape(-1, 8).sum(axis=1)
    return ones


def _split(context: Any, text: Any, separator: Any) -> pa.Array:
    """Splits each distinct text once, unless most texts are distinct."""
    wanted = _constant(separator)
    looked_at = text.slice(0, _LOOKED_AT)
    if len(looked_at.unique()) <= _FEW * len(looked_at):
        encoded = text.dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, pc.split_pattern(encoded.dictionary, wanted))
    indices = pa.array(np.arange(len(text), dtype=np.int32), mask=_nulls(text))
    return pa.DictionaryArray.from_arrays(indices, pc.split_pattern(text, wanted))


def _part(context: Any, split: Any, number: Any) -> pa.Array:
    lists, wanted = split.dictionary, _constant(number)
    counts = pc.list_value_length(lists).fill_null(0).to_numpy()
    absent = counts < abs(wanted)
    places = lists.offsets.to_numpy()[:-1] + (wanted - 1 if wanted > 0 else counts + wanted)
    parts = lists.values.take(pa.array(places, mask=absent)).fill_null("")
    return parts.take(split.indices)


def _constant(argument: Any) -> Any:
    """If all arguments are constants, Arrow passes arrays of length one."""
    return (argument[0] if isinstance(argument, pa.Array) else argument).as_py()


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _time_text(context: Any, time: Any, pattern: Any) -> pa.Array:
    """Times of a batch mostly share a day or minute, whose text is made once."""
    wanted = _constant(pattern)
    if len(time) - time.null_count < _LEAST:
        return _made_text(time, wanted)
    step = next((seconds for part, seconds in _SECONDS.items() if part in wanted), _SECONDS["dd"])
    step *= _PER_SECOND[time.type.unit]
    known = pc.fill_null(time, pc.min_max(time)["min"])
    numbers = known.view(pa.int64())
    least_and_most = pc.min_max(numbers)
    if least_and_most["min"].as_py() // step == least_and_most["max"].as_py() // step:
        text = _made_text(known.slice(0, 1), wanted)[0].as_buffer()
        offsets = np.arange(0, len(text) * len(time) + 1, len(text), dtype=np.int32)
        validity = time.is_valid().buffers()[1] if time.null_count else None
        return pa.StringArray.from_buffers(
            len(time), pa.py_buffer(offsets), pa.py_buffer(text.to_pybytes() * len(time)), validity
        )
    begins = np.flatnonzero(np.diff(numbers.to_numpy() // step, prepend=np.int64(np.iinfo(np.int64).min)))
    if len(begins) > len(time) // 4:
        return _made_text(time, wanted)
    runs = np.repeat(np.arange(len(begins), dtype=np.int32), np.diff(begins, append=len(time)))
    return _made_text(known.take(pa.array(begins)), wanted).take(pa.array(runs, mask=_nulls(time)))


def _made_text(time: pa.Array, pattern: str) -> pa.Array:
    """Cuts Arrow's text of a time, much faster than `pc.strftime`."""
    whole, unit = _SHOWN, time.type.unit
    if not any(part in pattern for part in TIME_PARTS[3:]):
        time, whole = time.cast(pa.date32(), safe=False), _SHOWN[:10]
    elif not any(part in pattern for part in TIME_PARTS[:3]):
        time, whole = time.cast(pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)), _SHOWN[11:]
    text = time.cast(pa.string())
    if pattern == whole == _SHOWN[:10]:
        return text
    split = [pattern] if pattern in whole else re.split(f"({'|'.join(TIME_PARTS)})", pattern)
    made = [_cut(text, each, whole) if each in whole and each else each for each in split]
    return pc.binary_join_element_wise(*made, "") if len(made) > 1 else made[0]


def _cut(text: pa.Array, part: str, whole: str) -> pa.Array:
    begin = whole.index(part)
    return pc.binary_slice(text.cast(pa.binary()), begin, begin + len(part)).cast(pa.string())


def _register() -> None:
    kinds: dict[str, tuple[Any, list[pa.DataType], pa.DataType]] = {
        _COUNT: (_count, [pa.string(), pa.string()], pa.int32()),
        _SPLIT: (_split, [pa.string(), pa.string()], _PARTS),
        _PART: (_part, [_PARTS, pa.int64()], pa.string()),
    }
    for unit in _PER_SECOND:
        kinds[f"{_TIME_TEXT}.{unit}"] = _time_text, [pa.timestamp(unit), pa.string()], pa.string()
    for name, (function, given, result) in kinds.items():
        arguments = {f"argument_{number}": kind for number, kind in enumerate(given)}
        about = {"summary": name, "description": "see barrier_runtime/data/sql/kernels.py"}
        pc.register_scalar_function(function, name, about, arguments, result)


_register()
