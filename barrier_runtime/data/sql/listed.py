"""`IN`, and many terms joined: Arrow takes the square of their number, or more, for an expression that is as deep as it
has terms, and that for each batch."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import Argument, Made, as_number

_UNKNOWN = pc.scalar(pa.scalar(None, pa.bool_()))


def in_pairs(joined: Callable[[Made, Made], Made], terms: Sequence[Made]) -> Made:
    """All of them joined, in their order, as flat as may be."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return joined(in_pairs(joined, terms[:middle]), in_pairs(joined, terms[middle:]))


def one_of(value: Argument, listed: Sequence[Argument], equal: Callable[[Argument], Made]) -> Made:
    """Whether `value` is one of these: null where it is null, and where it is none of them and one is null. Text and
    whole numbers are looked up in a table of them, others are compared one by one."""
    known = [each for each in listed if not pa.types.is_null(each.type)]
    kind = _looked_up(value.type, known)
    if kind is None:
        return in_pairs(pc.or_kleene, list(map(equal, listed)))
    sought = as_number(value, kind) if pa.types.is_integer(kind) else value.made
    found = pc.is_in(sought, value_set=pa.array([each.value for each in known], kind))
    unless = pc.is_valid(value.made) if len(known) == len(listed) else found
    return pc.if_else(unless, found, _UNKNOWN)


def _looked_up(kind: pa.DataType, known: Sequence[Argument]) -> pa.DataType | None:
    """The type in which they are, if they can be."""
    if not known or not all(each.is_constant for each in known):
        return None
    if pa.types.is_string(kind) and all(pa.types.is_string(each.type) for each in known):
        return kind
    whole = pa.types.is_integer(kind) and kind != pa.uint64()
    return pa.int64() if whole and all(pa.types.is_integer(each.type) for each in known) else None
