"""Functions of texts by Spark's names: parts, patterns, padding, digests."""

import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import Argument, Made, Unfit
from barrier_runtime.data.sql.kernels import call, column, kernel, value_kernel
from barrier_runtime.data.sql.texts import text_of

_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?P?<(?![=!])\w+>|\(\?|.", re.DOTALL)
_DIGESTS = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
_LOOKS_BACK = re.compile(r"(?<!\[)\^|\\[ABb]")  # Arrow's split and count take the rest of a text for a whole text
_BEGIN, _END = "\1", "\2"
_TRIED = ("", "ab", " a b ", "0,1", "_", "\n")
_PLAIN = re.compile(r"[^\\^$.|?*+()\[\]{}]+|\\[^A-Za-z0-9]")


def _text(argument: Argument) -> Argument:
    return Argument(text_of(argument), pa.string(), argument.is_constant, argument.value)


def _bytes(argument: Argument) -> Argument:
    if pa.types.is_binary(argument.type):
        return argument
    return Argument(text_of(argument).cast(pa.binary()), pa.binary(), False, None)


def _number(argument: Argument, what: str) -> Argument:
    if not pa.types.is_integer(argument.type):
        raise Unfit(f"{what} is a whole number, and this is {argument.type}")
    return Argument(argument.made.cast(pa.int64()), pa.int64(), argument.is_constant, argument.value)


def _concat_ws(separator: Argument, *texts: Argument) -> Made:
    if any(pa.types.is_nested(each.type) for each in texts):
        raise Unfit("it joins texts: join the elements of an array by array_join")
    known = [_text(each) for each in texts if not pa.types.is_null(each.type)]
    return call("concat_ws", pa.string(), _text(separator), *known)


@kernel("concat_ws")
def _joined(kind: pa.DataType, separators: pa.Array, *texts: pa.Array) -> pa.Array:
    """In Python, because Arrow leaves out a row whose texts are all null."""
    rows = zip(*(each.to_pylist() for each in texts), strict=True) if texts else iter(((),) * len(separators))
    joined = [
        None if separator is None else separator.join(each for each in row if each is not None)
        for separator, row in zip(separators.to_pylist(), rows, strict=True)
    ]
    return column(joined, kind)


def _split(text: Argument, pattern: Argument, limit: Argument | None = None) -> Made:
    sought = str(pattern.constant("the pattern"))
    most = -1 if limit is None else int(limit.constant("the limit"))
    if not sought:
        raise Unfit("the pattern is empty: name what stands between the parts")
    splits = most - 1 if most > 0 else None
    if "".join(_PLAIN.findall(sought)) == sought:
        plain = re.sub(r"\\(.)", r"\1", sought)
        return pc.split_pattern(text_of(text), plain, max_splits=splits)
    if _matches_nothing(sought):  # Arrow would split for ever
        raise Unfit(f"the pattern {sought!r} also matches where no character is: write + for *, or what stands there")
    if _LOOKS_BACK.search(sought):
        number = Argument(pc.scalar(pa.scalar(most, pa.int64())), pa.int64(), True, most)
        return call("split_by", pa.list_(pa.string()), _text(text), _text(pattern), number)
    return pc.split_pattern_regex(text_of(text), sought, max_splits=splits)


def _matches_nothing(pattern: str) -> bool:
    try:
        found = pc.replace_substring_regex(pa.array(_TRIED), pattern, rf"{_BEGIN}\0{_END}")
    except pa.ArrowInvalid as error:
        raise Unfit(str(error)) from error
    return any(_BEGIN + _END in each for each in found.to_pylist())


@kernel("split_by")
def _split_by(kind: pa.DataType, texts: pa.Array, patterns: pa.Array, limits: pa.Array) -> pa.Array:
    """Marks all matches first: Arrow's split takes the rest of a text for a text, which begins with a word."""
    if not len(texts):
        return column([], kind)
    free = (chr(code) for code in range(0xE000, 0xF900))
    begin, end = islice((sign for sign in free if not pc.any(pc.match_substring(texts, sign)).as_py()), 2)
    marked = pc.replace_substring_regex(texts, patterns[0].as_py(), rf"{begin}\0{end}")
    parts = [None if each is None else each.split(begin, limits[0].as_py() - 1) for each in marked.to_pylist()]
    for row in filter(None, parts):
        row[1:] = [each.partition(end)[2] for each in row[1:]]
        row[-1] = row[-1].replace(begin, "").replace(end, "")
    return column(parts, kind)


def regexp_count(text: Argument, pattern: Argument) -> Made:
    sought = str(pattern.constant("the pattern"))
    if not (_LOOKS_BACK.search(sought) or _matches_nothing(sought)):
        return pc.count_substring_regex(text_of(text), sought)
    marked = pc.replace_substring_regex(text_of(text), sought, rf"{_BEGIN}\0")
    return pc.subtract(pc.count_substring(marked, _BEGIN), pc.count_substring(text_of(text), _BEGIN))


def _regexp_extract(text: Argument, pattern: Argument, group: Argument | None = None) -> Made:
    """Empty, as in Spark, without a match."""
    sought = str(pattern.constant("the pattern"))
    wanted = 1 if group is None else int(group.constant("the number of the group"))
    parts, groups = ["(?P<g0>"], 0
    for part in _GROUPS.findall(sought):
        is_group = part == "(" or (part.startswith("(?") and part.endswith(">"))
        groups += is_group
        parts.append(f"(?P<g{groups}>" if is_group else part)
    if not 0 <= wanted <= groups:
        raise Unfit(f"the pattern {sought!r} has {groups} groups, and no group {wanted}")
    found = pc.extract_regex(text_of(text), "".join([*parts, ")"]))
    named = pc.struct_field(found, [wanted])
    nothing = pc.if_else(pc.is_valid(text_of(text)), pc.scalar(""), pc.scalar(pa.scalar(None, pa.string())))
    return pc.coalesce(named, nothing)


def _sha2(value: Argument, bits: Argument) -> Made:
    wanted = int(bits.constant("the number of bits"))
    if wanted not in _DIGESTS:
        raise Unfit(f"the number of bits is {wanted}; one of {', '.join(map(str, _DIGESTS))}")
    return call("sha2", pa.string(), _bytes(value), _number(bits, "the number of bits"))


def _pad(name: str) -> Callable[..., Made]:
    def made(text: Argument, length: Argument, fill: Argument | None = None) -> Made:
        sign = fill or Argument(pc.scalar(" "), pa.string(), True, " ")
        return call(name, pa.string(), _text(text), _number(length, "the length"), _text(sign))

    return made


def _lpad(text: str, length: int, fill: str) -> str:
    missing = max(0, length - len(text))
    return (fill * missing)[:missing] + text[: max(0, length)]


def _rpad(text: str, length: int, fill: str) -> str:
    missing = max(0, length - len(text))
    return text[: max(0, length)] + (fill * missing)[:missing]


def locate(sought: Argument, text: Argument, start: Argument | None = None) -> Made:
    first = start or Argument(pc.scalar(1), pa.int64(), True, 1)
    return call("locate", pa.int32(), _text(sought), _text(text), _number(first, "the position"))


def _place(sought: str, text: str, start: int) -> int:
    if start < 1 or not sought:
        return int(start >= 1)
    return text.find(sought, start - 1) + 1


def _repeat(text: Argument, times: Argument) -> Made:
    return call("repeat", pa.string(), _text(text), _number(times, "the number of times"))


def _reverse(text: Argument) -> Made:
    if pa.types.is_list(text.type):
        return call("array_reverse", text.type, text)
    return pc.utf8_reverse(text_of(text))


def _translated(text: str, old: str, new: str) -> str:
    changes: dict[int, str | None] = {}
    for at, sign in enumerate(old):
        changes.setdefault(ord(sign), new[at] if at < len(new) else None)
    return text.translate(changes)


def _part_before(text: str, delimiter: str, count: int) -> str:
    if not delimiter or not count:
        return ""
    at = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):  # delimiters may overlap
        at = text.find(delimiter, at + 1) if count > 0 else text.rfind(delimiter, 0, at - 1 + len(delimiter))
        if at < 0:
            return text
    return text[:at] if count > 0 else text[at + len(delimiter) :]


def _distance(one: str, other: str) -> int:
    before = list(range(len(other) + 1))
    for at, sign in enumerate(one, 1):
        after = [at]
        for place, its in enumerate(other, 1):
            after.append(min(before[place] + 1, after[-1] + 1, before[place - 1] + (sign != its)))
        before = after
    return before[-1]


def _hex(value: Any) -> str:
    if isinstance(value, int):
        return f"{value & (1 << 64) - 1:X}"
    return bytes(value).hex().upper()


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text!r} is not base64") from error


def _of_texts(name: str, kind: pa.DataType, numbers: tuple[int, ...] = ()) -> Callable[..., Made]:
    """`numbers`: places of whole numbers among the arguments."""

    def made(*arguments: Argument) -> Made:
        given = [_number(each, "this") if at in numbers else _text(each) for at, each in enumerate(arguments)]
        return call(name, kind, *given)

    return made


def _of_bytes(name: str, kind: pa.DataType) -> Callable[[Argument], Made]:
    return lambda value: call(name, kind, _bytes(value))


def _hex_of(value: Argument) -> Made:
    whole = pa.types.is_integer(value.type)
    return call("hex", pa.string(), _number(value, "this") if whole else _bytes(value))


def _initcap(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:].lower() for word in text.split(" "))


value_kernel("md5", lambda value: hashlib.md5(value, usedforsecurity=False).hexdigest())
value_kernel("sha1", lambda value: hashlib.sha1(value, usedforsecurity=False).hexdigest())
value_kernel("sha2", lambda value, bits: hashlib.new(_DIGESTS[bits], value).hexdigest())
value_kernel("crc32", zlib.crc32)
value_kernel("base64", lambda value: base64.b64encode(value).decode())
value_kernel("unbase64", _unbase64)
value_kernel("hex", _hex)
value_kernel("initcap", _initcap)
value_kernel("lpad", _lpad)
value_kernel("rpad", _rpad)
value_kernel("locate", _place)
value_kernel("repeat", lambda text, times: text * times)
value_kernel("translate", _translated)
value_kernel("substring_index", _part_before)
value_kernel("levenshtein", _distance)
value_kernel("ascii", lambda text: ord(text[0]) if text else 0)
value_kernel("chr", lambda number: "" if number < 0 else chr(number & 255))

_STRING = pa.string()
# as in `named.NAMED`
TEXT_FUNCTIONS: dict[str, tuple[int, int | None, Callable[..., Made]]] = {
    "ascii": (1, 1, _of_texts("ascii", pa.int32())),
    "base64": (1, 1, _of_bytes("base64", _STRING)),
    "bit_length": (1, 1, lambda value: pc.multiply(pc.binary_length(_bytes(value).made), pc.scalar(8))),
    "btrim": (1, 1, lambda text: pc.utf8_trim(text_of(text), " ")),
    "chr": (1, 1, _of_texts("chr", _STRING, (0,))),
    "concat_ws": (1, None, _concat_ws),
    "crc32": (1, 1, _of_bytes("crc32", pa.int64())),
    "hex": (1, 1, _hex_of),
    "initcap": (1, 1, _of_texts("initcap", _STRING)),
    "instr": (2, 2, lambda text, sought: locate(sought, text)),
    "levenshtein": (2, 2, _of_texts("levenshtein", pa.int32())),
    "locate": (2, 3, locate),
    "lpad": (2, 3, _pad("lpad")),
    "md5": (1, 1, _of_bytes("md5", _STRING)),
    "octet_length": (1, 1, lambda value: pc.binary_length(_bytes(value).made)),
    "regexp_extract": (2, 3, _regexp_extract),
    "repeat": (2, 2, _repeat),
    "reverse": (1, 1, _reverse),
    "rpad": (2, 3, _pad("rpad")),
    "sha": (1, 1, _of_bytes("sha1", _STRING)),
    "sha1": (1, 1, _of_bytes("sha1", _STRING)),
    "sha2": (2, 2, _sha2),
    "split": (2, 3, _split),
    "substring_index": (3, 3, _of_texts("substring_index", _STRING, (2,))),
    "translate": (3, 3, _of_texts("translate", _STRING)),
    "unbase64": (1, 1, _of_texts("unbase64", pa.binary())),
}
