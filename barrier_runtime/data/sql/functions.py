"""Functions that sqlglot parses to a class of their own, each as an Arrow expression; all others: `named.NAMED`."""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from barrier_runtime.data.sql.arguments import Argument, Made, Unfit, as_number, beside_each_other, one_time, to_round
from barrier_runtime.data.sql.kernels import TIME_PARTS, how_many, part, time_text
from barrier_runtime.data.sql.text_functions import locate, regexp_count
from barrier_runtime.data.sql.texts import text_of, time_of_text


def time_of(argument: Argument) -> Made:
    if pa.types.is_string(argument.type):
        return time_of_text(argument.made)
    return argument.made.cast(pa.timestamp("us")) if pa.types.is_date(argument.type) else argument.made


def _shown_time(argument: Argument) -> Made:
    """Local time in a time's zone, so that no later function needs the zone."""
    kind = argument.type
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return time_of(argument)
    if kind.tz == "UTC":  # the digits are the same, which halves the cost of reading an hour
        return argument.made.cast(pa.timestamp(kind.unit))
    return pc.local_timestamp(argument.made)


def joined(arguments: Sequence[Argument]) -> Made:
    return pc.binary_join_element_wise(*map(text_of, arguments), pc.scalar(""))


def _whole(function: Callable[..., Made]) -> Callable[..., Made]:
    def made(value: Argument) -> Made:
        if pa.types.is_integer(value.type):
            return value.made
        return function(to_round(value)).cast(pa.int64())

    return made


def _round(value: Argument, decimals: Argument | None = None) -> Made:
    digits = 0 if decimals is None else int(decimals.constant("the number of digits"))
    if pa.types.is_integer(value.type) and digits >= 0:
        return value.made
    if pa.types.is_floating(value.type) and abs(digits) > _EXACT_POWERS:
        return _round_far(as_number(value, pa.float64()), digits).cast(value.type)
    if pa.types.is_decimal(value.type) and digits >= value.type.scale:
        return value.made
    made = pc.round(to_round(value, digits), ndigits=digits, round_mode="half_towards_infinity")
    if pa.types.is_decimal(value.type):
        whole = value.type.precision - value.type.scale + 1
        return made.cast(pa.decimal128(min(38, whole + max(0, digits)), max(0, digits)))
    return made


def _round_far(value: Made, digits: int) -> Made:
    """Rounds where Arrow's power of ten, a number of 32 bits, is not exact."""
    if abs(digits) > _MOST_POWERS:
        return value if digits > 0 else pc.if_else(pc.is_finite(value), pc.scalar(0.0), value)
    power = pc.scalar(10.0 ** abs(digits))
    there, back = (pc.multiply, pc.divide) if digits > 0 else (pc.divide, pc.multiply)
    moved = there(value, power)
    rounded = back(pc.round(moved, ndigits=0, round_mode="half_towards_infinity"), power)
    return pc.if_else(pc.abs(moved) < pc.scalar(_WHOLE), rounded, value)


def _length(text: Argument) -> Made:
    return pc.binary_length(text.made) if pa.types.is_binary(text.type) else pc.utf8_length(text_of(text))


def _substring(text: Argument, start: Argument, length: Argument | None = None) -> Made:
    first = int(start.constant("the position"))
    begin = first - 1 if first > 0 else first
    if length is None:
        return pc.utf8_slice_codeunits(text_of(text), begin)
    count = max(0, int(length.constant("the length")))
    end = begin + count
    if begin < 0 <= end:
        return pc.utf8_slice_codeunits(text_of(text), begin)
    return pc.utf8_slice_codeunits(text_of(text), begin, end)


def _left(text: Argument, length: Argument) -> Made:
    return pc.utf8_slice_codeunits(text_of(text), 0, max(0, int(length.constant("the length"))))


def _right(text: Argument, length: Argument) -> Made:
    count = max(0, int(length.constant("the length")))
    return pc.utf8_slice_codeunits(text_of(text), -count) if count else pc.utf8_slice_codeunits(text_of(text), 0, 0)


def _split_part(text: Argument, delimiter: Argument, number: Argument) -> Made:
    separator, which = str(delimiter.constant("the delimiter")), int(number.constant("the number of the part"))
    if not which:
        raise Unfit("parts are numbered from 1 on, or from the end, where the last is -1")
    if separator:
        return part(text_of(text), separator, which)
    return text_of(text) if abs(which) == 1 else pc.utf8_slice_codeunits(text_of(text), 0, 0)


def _regexp_count(text: Argument, pattern: Argument) -> Made:
    sought = str(pattern.constant("the pattern"))
    if len(sought) == 1 and sought.isascii() and re.escape(sought) == sought:
        return how_many(text_of(text), sought)
    return regexp_count(text, pattern)


def _trim(text: Argument, where: Argument | None = None) -> Made:
    side = "BOTH" if where is None else where.constant("the side")
    trims = {"BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}
    return trims[side](text_of(text), " ")


def _replace(text: Argument, old: Argument, new: Argument | None = None) -> Made:
    pattern, replacement = old.constant("what is replaced"), "" if new is None else new.constant("the replacement")
    return pc.replace_substring(text_of(text), pattern, replacement) if pattern else text_of(text)


def _regexp_replace(text: Argument, pattern: Argument, new: Argument) -> Made:
    sought, written = str(pattern.constant("the pattern")), str(new.constant("the replacement"))
    return pc.replace_substring_regex(text_of(text), sought, _replacement(written, sought.count("(")))


def _replacement(written: str, groups: int) -> str:
    """Java's replacement text in RE2's form. `groups`: upper bound of the pattern's groups."""
    made = ""
    for sign in re.findall(r"\\.|\$\d\d?|.", written, re.DOTALL):
        if sign in ("\\", "$"):
            raise Unfit(
                f"the replacement is {written!r}: $ stands before the number of a group, as in $1; write a dollar that "
                r"is meant as it is '\\$', and a backslash '\\\\'"
            )
        if sign[0] == "$":
            if len(sign) > 2 and int(sign[1:]) <= groups:
                raise Unfit(f"the replacement is {written!r}: groups have numbers up to 9 here: make fewer, by (?:…)")
            made += "\\" + sign[1:]
        else:
            made += sign[-1].replace("\\", r"\\")
    return made


def _with_constant(function: Callable[..., Made], what: str) -> Callable[..., Made]:
    return lambda text, sought: function(text_of(text), sought.constant(what))


def _like(text: Argument, pattern: Argument, any_case: bool = False) -> Made:
    wanted = str(pattern.constant("the pattern"))
    signs = _SIGNS_OF_LIKE.findall(wanted)
    if "\\" in signs:
        raise Unfit(f"the pattern is {wanted!r}: a backslash stands before %, _ or another backslash")
    if r"\\" not in signs:
        return pc.match_like(text_of(text), wanted, ignore_case=any_case)
    # Arrow does not unescape a double backslash if the only % is at an end of the pattern.
    sought = "".join({"%": ".*", "_": "."}.get(sign) or re.escape(sign[-1]) for sign in signs)
    return pc.match_substring_regex(text_of(text), f"(?s)^(?:{sought})$", ignore_case=any_case)


def _nullif(value: Argument, other: Argument) -> Made:
    one, two = beside_each_other([value, other])
    equal = pc.coalesce(one == two, pc.scalar(False))
    return pc.if_else(equal, pc.scalar(pa.scalar(None, value.type)), value.made)


def _extreme(function: Callable[..., Made]) -> Callable[..., Made]:
    def made(*values: Argument) -> Made:
        times = [value.type for value in values if pa.types.is_timestamp(value.type)]
        kind = one_time(times) if times else None
        if kind is None or kind.tz is None:
            return function(*known(values), skip_nulls=True)
        without = [value.cast(pa.timestamp(kind.unit)) for value in known(values)]  # Arrow compares no zoned times
        return function(*without, skip_nulls=True).cast(kind)

    return made


def _greatest(*values: Argument) -> Made:
    """NaN is the greatest number, as in Spark; Arrow ignores NaN."""
    made = _extreme(pc.max_element_wise)(*values)
    if not any(pa.types.is_floating(value.type) for value in values):
        return made
    any_is_nan = reduce(pc.or_kleene, [pc.coalesce(pc.is_nan(value), False) for value in known(values)])
    return pc.if_else(any_is_nan, pc.scalar(float("nan")), made)


def known(values: Sequence[Argument]) -> list[Made]:
    return beside_each_other([value for value in values if not pa.types.is_null(value.type)] or values[:1])


def _double(function: Callable[..., Made]) -> Callable[..., Made]:
    return lambda *values: function(*(as_number(value, pa.float64()) for value in values))


def _ln(value: Made) -> Made:
    """Null, as in Spark, if there is no logarithm; NaN of NaN."""
    return pc.if_else(value <= pc.scalar(0.0), pc.scalar(pa.scalar(None, pa.float64())), pc.ln(value))


def _part(function: Callable[..., Made]) -> Callable[..., Made]:
    return lambda time: function(_shown_time(time))


def _trunc(time: Argument, unit: Argument) -> Made:
    name = str(unit.constant("the unit")).lower()
    if name not in _UNITS_OF_TIME:
        raise Unfit(f"the unit is {name}; one of {', '.join(_UNITS_OF_TIME)}")
    zone = time.type.tz if pa.types.is_timestamp(time.type) else None
    if zone in (None, "UTC"):
        return pc.floor_temporal(time_of(time), unit=name)
    shown = pc.local_timestamp(time.made)  # Arrow refuses times that clocks of the zone show twice, or never
    begin = pc.floor_temporal(shown, unit=name)
    if name in _WITHIN_A_DAY:
        return pc.subtract(time.made, pc.subtract(shown, begin))
    return pc.assume_timezone(begin, zone, ambiguous="earliest", nonexistent="latest")


def date_format(time: Argument, pattern: Argument) -> Made:
    wanted = str(pattern.constant("the pattern"))
    split = re.split(f"({'|'.join(TIME_PARTS)})", wanted)
    if len(split) == 1 or any(map(_NOT_A_SIGN.search, split[::2])) or any(part * 2 in wanted for part in TIME_PARTS):
        raise Unfit(f"the pattern is {wanted!r}; one of {', '.join(TIME_PARTS)} and signs between them")
    return time_text(_shown_time(time), time.type.unit if pa.types.is_timestamp(time.type) else "us", wanted)


def extract(unit: Argument, time: Argument) -> Made:
    part = str(unit.constant("the unit")).lower()
    if part not in _PARTS:
        raise Unfit(f"the unit is {part}; one of {', '.join(_PARTS)}")
    return _PARTS[part](_shown_time(time))


def _seconds(time: Made) -> Made:
    below = pc.add(pc.multiply(pc.millisecond(time), pc.scalar(1_000)), pc.microsecond(time))
    whole = pc.add(pc.multiply(pc.second(time), pc.scalar(1_000_000)), below)
    made = pc.multiply(whole.cast(pa.decimal128(19, 0)), pc.scalar(Decimal("0.000001")))
    return made.cast(pa.decimal128(8, 6))


_EXACT_POWERS = 10  # most digits to which Arrow rounds doubles exactly
_MOST_POWERS = 308  # greatest power of ten that is a double
_WHOLE = 2.0**52  # larger doubles have no fraction
_SIGNS_OF_LIKE = re.compile(r"\\[%_\\]|.", re.DOTALL)
_NOT_A_SIGN = re.compile(r"[A-Za-z'\[\]{}#]")  # characters with a meaning in Java's patterns
_WITHIN_A_DAY = ("hour", "minute", "second")
_UNITS_OF_TIME = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_PARTS: dict[str, Callable[..., Made]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": _seconds,
}

# class -> (arguments in order; a trailing "?": optional, "*": any number), function that makes the expression
FUNCTIONS: dict[type[exp.Expr], tuple[tuple[str, ...], Callable[..., Made]]] = {
    exp.Abs: (("this",), lambda value: pc.abs_checked(value.made)),
    exp.Sign: (("this",), lambda value: pc.sign(value.made).cast(pa.float64())),
    exp.Ceil: (("this",), _whole(pc.ceil)),
    exp.Floor: (("this",), _whole(pc.floor)),
    exp.Round: (("this", "decimals?"), _round),
    exp.Sqrt: (("this",), _double(pc.sqrt)),
    exp.Exp: (("this",), _double(pc.exp)),
    exp.Ln: (("this",), _double(_ln)),
    exp.Pow: (("this", "expression"), _double(pc.power)),
    exp.Greatest: (("this", "expressions*"), _greatest),
    exp.Least: (("this", "expressions*"), _extreme(pc.min_element_wise)),
    exp.Nullif: (("this", "expression"), _nullif),
    exp.Upper: (("this",), lambda text: pc.utf8_upper(text_of(text))),
    exp.Lower: (("this",), lambda text: pc.utf8_lower(text_of(text))),
    exp.Length: (("this",), _length),
    exp.Trim: (("this", "position?"), _trim),
    exp.Substring: (("this", "start", "length?"), _substring),
    exp.Left: (("this", "expression"), _left),
    exp.Right: (("this", "expression"), _right),
    exp.Replace: (("this", "expression", "replacement?"), _replace),
    exp.SplitPart: (("this", "delimiter", "part_index"), _split_part),
    exp.RegexpCount: (("this", "expression"), _regexp_count),
    exp.RegexpReplace: (("this", "expression", "replacement"), _regexp_replace),
    exp.Concat: (("expressions*",), lambda *texts: joined(texts)),
    exp.DPipe: (("this", "expression"), lambda *texts: joined(texts)),
    exp.StartsWith: (("this", "expression"), _with_constant(pc.starts_with, "the beginning")),
    exp.EndsWith: (("this", "expression"), _with_constant(pc.ends_with, "the end")),
    exp.Contains: (("this", "expression"), _with_constant(pc.match_substring, "what is looked for")),
    exp.StrPosition: (("substr", "this", "position?"), locate),
    exp.Like: (("this", "expression"), _like),
    exp.ILike: (("this", "expression"), partial(_like, any_case=True)),
    exp.RegexpLike: (("this", "expression"), _with_constant(pc.match_substring_regex, "the pattern")),
    exp.Year: (("this",), _part(pc.year)),
    exp.Quarter: (("this",), _part(pc.quarter)),
    exp.Month: (("this",), _part(pc.month)),
    exp.Day: (("this",), _part(pc.day)),
    exp.DayOfMonth: (("this",), _part(pc.day)),
    exp.Hour: (("this",), _part(pc.hour)),
    exp.Minute: (("this",), _part(pc.minute)),
    exp.Second: (("this",), _part(pc.second)),
    exp.TimeToStr: (("this", "format"), date_format),
    exp.TimestampTrunc: (("this", "unit"), _trunc),
    exp.Extract: (("this", "expression"), extract),
}
MAY_FAIL = frozenset({exp.Abs, exp.Ceil, exp.Floor, exp.Round})  # if the result does not fit
OF_TIMES = frozenset({exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.Hour, exp.Minute, exp.Second})
OF_TIMES |= {exp.TimeToStr, exp.TimestampTrunc, exp.Extract}  # may fail for text
# set by the parser, without effect here
IGNORED = frozenset({"safe", "coalesce", "ignore_nulls", "is_null", "_type"})
