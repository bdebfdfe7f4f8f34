"""Types of stored values, and the rules for reading stored values as another type.

Values are MessagePack with field names, so the rules are those of strict decoding; docs/state.md has a table. A nested
class with lost and new fields is refused, too, because a new field may be a renamed field. Entries of *earlier* types
may have fields that the newest type has lost: a field that comes back must read these values, and in an array no other
field may take the place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

_ALSO_READ = {"float": {"int"}, "decimal": {"int", "float"}, "str": {"date", "time", "timedelta", "uuid", "decimal"}}


MADE_ANEW = "a new value"  # default of a function, which entries never lack


class FieldType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    type: "ValueType"
    default: bool = False  # entries without the field can be read
    absent: bool = False  # entries may lack the field
    filled: str = ""  # of a msgspec.Struct: the default for entries that lack the field, as JSON; "" also if unknown


class ValueType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A type of these kinds:

    - any, none, bool, int, float, str, bytes, datetime, time, date, timedelta, uuid, decimal
    - pickle: nothing is known of the values
    - list: `of` the items; also sets, and tuples of any length
    - tuple: `of` each item
    - dict: `of` keys and values
    - class: `fields`, by name; `tag` and `strict` as a msgspec.Struct may have them
    - array: a class whose `fields` are written in order, without their names
    - choice: an enum or literals, with `values`
    - union: `of` the members
    - again: a class inside itself, the enclosing class `up` levels further out
    """

    kind: str
    name: str = ""  # of a class or enum, for people
    of: "tuple[ValueType, ...]" = ()
    fields: tuple[FieldType, ...] = ()
    values: tuple[int | str | None, ...] = ()
    tag: str = ""
    strict: bool = False  # unknown fields are refused
    up: int = 0

    def __str__(self) -> str:
        if self.kind == "union":
            return " | ".join(map(str, self.of))
        if self.kind == "choice":
            return f"{self.name or 'Literal'}({', '.join(map(repr, self.values))})"
        if self.kind == "again":
            return self.name
        if self.of:
            return f"{self.kind}[{', '.join(map(str, self.of))}]"
        return self.name or {"none": "None", "any": "Any"}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Misfit:
    """`path`: such as "lines[].price"; empty: the whole value."""

    path: str
    before: str
    now: str
    why: str = ""


_Classes = tuple[ValueType, ...]  # from the outermost class


def misfit(
    before: ValueType, now: ValueType, renamed: Mapping[str, str | None] | None = None, earlier: bool = False
) -> Misfit | None:
    """First place in values of `before` that cannot be read as `now`; None: no such place.

    `renamed`: earlier names of the class's own fields. `earlier`: another type was in use in between.
    """
    return _Comparison(earlier).whole(before, now, renamed or {})


def loses(before: ValueType, now: ValueType, renamed: Mapping[str, str | None]) -> bool:
    comparison = _Comparison()
    comparison.whole(before, now, renamed)
    return comparison.lost


def to_floats(before: ValueType, now: ValueType, renamed: Mapping[str, str | None], earlier: bool = False) -> bool:
    """Returns whether an int in values of `before` may be read as a float."""
    comparison = _Comparison(earlier)
    comparison.whole(before, now, renamed)
    return comparison.to_floats


def _holds_floats(kind: ValueType) -> bool:
    parts = (*kind.of, *(field.type for field in kind.fields))
    return kind.kind == "float" or any(map(_holds_floats, parts))


def _tags(before: ValueType, now: ValueType, path: str, tagged: bool) -> Misfit | None:
    """`tagged`: the tag distinguishes `now` from other types."""
    if before.tag == now.tag or not (tagged or (before.tag and now.tag)):
        return None
    return Misfit(path, str(before), str(now), f"its tag is {now.tag!r} and was {before.tag!r}")


class _Comparison:
    """`outer` and `inside`: the enclosing classes, to which "again" refers."""

    def __init__(self, earlier: bool = False) -> None:
        self._seen: set[tuple[int, int]] = set()  # pairs that fit, or are being compared
        self._earlier = earlier
        self.lost = False
        self.to_floats = False

    def whole(self, before: ValueType, now: ValueType, renamed: Mapping[str, str | None]) -> Misfit | None:
        if before.kind == now.kind == "class":
            fields = tuple(
                msgspec.structs.replace(each, name=renamed.get(each.name) or each.name) for each in before.fields
            )
            now_named = msgspec.structs.replace(before, fields=fields)
            return _tags(before, now, "", False) or self.by_name(now_named, now, "", (before,), (now,), whole=True)
        return self.at(before, now, "", (), (), False)

    def at(
        self, before: ValueType, now: ValueType, path: str, outer: _Classes, outer_now: _Classes, tagged: bool
    ) -> Misfit | None:
        if before.kind == "again":
            before, outer = outer[-before.up], outer[: -before.up]
        if now.kind == "again":
            now, outer_now = outer_now[-now.up], outer_now[: -now.up]
        if "pickle" in (before.kind, now.kind):
            return None if before.kind == now.kind else Misfit(path, str(before), str(now))
        if "any" in (before.kind, now.kind):
            self.to_floats = self.to_floats or _holds_floats(now)
            return None
        if before.kind == "union":
            each = (self.at(member, now, path, outer, outer_now, tagged) for member in before.of)
            found = next((wrong for wrong in each if wrong is not None), None)
            return Misfit(path, str(before), str(now), found.why) if found is not None and found.path == path else found
        if now.kind == "union":
            return self._union(before, now, path, outer, outer_now)
        if before.kind in ("class", "array") and now.kind == before.kind:
            return self._classes(before, now, path, (*outer, before), (*outer_now, now), tagged)
        return self._plain(before, now, path, outer, outer_now)

    def _classes(
        self, before: ValueType, now: ValueType, path: str, inside: _Classes, inside_now: _Classes, tagged: bool
    ) -> Misfit | None:
        pair = (id(before), id(now))
        if pair in self._seen:
            return None
        self._seen.add(pair)
        compare = self._in_order if now.kind == "array" else self.by_name
        wrong = _tags(before, now, path, tagged) or compare(before, now, path, inside, inside_now)
        if wrong is not None:
            self._seen.discard(pair)  # a union may compare the pair again
        return wrong

    def _union(
        self, before: ValueType, now: ValueType, path: str, outer: _Classes, outer_now: _Classes
    ) -> Misfit | None:
        tagged = sum(member.kind == "class" for member in now.of) > 1
        found = [self.at(before, member, path, outer, outer_now, tagged) for member in now.of]
        if None in found:
            return None
        inside = next((wrong for wrong in found if wrong is not None and wrong.path != path), None)
        return inside or Misfit(path, str(before), str(now))

    def _plain(
        self, before: ValueType, now: ValueType, path: str, outer: _Classes, outer_now: _Classes
    ) -> Misfit | None:
        wrong = Misfit(path, str(before), str(now))
        into = f"{path}[]"
        if now.kind == "list" and before.kind in ("list", "tuple", "array"):
            inside = (*outer, before) if before.kind == "array" else outer
            types = tuple(field.type for field in before.fields) if before.kind == "array" else before.of
            return self._first(types, now.of * len(types), into, inside, outer_now)
        if now.kind == "tuple" and before.kind == "tuple" and len(now.of) == len(before.of):
            return self._first(before.of, now.of, into, outer, outer_now)
        if now.kind == "array" and before.kind == "tuple":
            items = tuple(FieldType(field.name, type) for field, type in zip(now.fields, before.of, strict=False))
            if len(before.of) > len(now.fields):
                return wrong
            return self._in_order(ValueType("array", fields=items), now, path, outer, (*outer_now, now))
        if now.kind == "dict" and before.kind == "dict":
            return self._first(before.of, now.of, into, outer, outer_now)
        if now.kind == "dict" and before.kind == "class":
            types = tuple(field.type for field in before.fields)
            text = self.at(ValueType("str"), now.of[0], into, (), outer_now, False)
            return text or self._first(types, now.of[1:] * len(types), into, (*outer, before), outer_now)
        if before.kind == "choice":
            if now.kind == "choice":
                lost = [value for value in before.values if value not in now.values]
                why = f"it has lost {', '.join(map(repr, lost))}"
                return Misfit(path, str(before), str(now), why) if lost else None
            plain = {int: "int", str: "str", type(None): "none"}
            return wrong if any(plain[type(value)] != now.kind for value in before.values) else None
        if now.kind == before.kind and now.kind not in ("tuple", "class", "array", "list", "dict"):
            return None
        self.to_floats = self.to_floats or (before.kind, now.kind) == ("int", "float")
        return None if before.kind in _ALSO_READ.get(now.kind, ()) else wrong

    def _first(
        self,
        before: Sequence[ValueType],
        now: Sequence[ValueType],
        path: str,
        outer: _Classes,
        outer_now: _Classes,
    ) -> Misfit | None:
        found = (self.at(one, other, path, outer, outer_now, False) for one, other in zip(before, now, strict=True))
        return next((wrong for wrong in found if wrong is not None), None)

    def by_name(
        self,
        before: ValueType,
        now: ValueType,
        path: str,
        inside: _Classes,
        inside_now: _Classes,
        whole: bool = False,
    ) -> Misfit | None:
        """`whole`: the class is the value."""
        was = {field.name: field for field in before.fields}
        for field in now.fields:
            at = f"{path}.{field.name}" if path else field.name
            if field.name not in was:
                if not field.default:
                    return Misfit(at, "nothing", str(field.type), "a new field needs a default for entries without it")
                continue
            if was[field.name].absent and not field.default:
                return Misfit(at, f"{was[field.name].type}, where it is not the default", str(field.type))
            wrong = self.at(was[field.name].type, field.type, at, inside, inside_now, False)
            wrong = wrong or _fills_otherwise(was[field.name], field, at)
            if wrong is not None:
                return wrong
        known = {field.name for field in now.fields}
        lost = [name for name in was if name not in known]
        came = [field.name for field in now.fields if field.name not in was]
        self.lost = self.lost or bool(lost)
        if lost and now.strict:
            return Misfit(
                path, str(before), str(now), f"it forbids unknown fields, and entries have {fields_said(lost)}"
            )
        if lost and came and not whole and not self._earlier:
            return Misfit(
                path,
                str(before),
                str(now),
                f"it has lost {fields_said(lost)}, and {fields_said(came)} came: which is which?",
            )
        return None

    def _in_order(
        self, before: ValueType, now: ValueType, path: str, inside: _Classes, inside_now: _Classes
    ) -> Misfit | None:
        places = {field.name: place for place, field in enumerate(before.fields)}
        self.lost = self.lost or len(before.fields) > len(now.fields)
        for place, field in enumerate(now.fields):
            at = f"{path}.{field.name}" if path else field.name
            if places.get(field.name, place) != place:
                return Misfit(
                    at, f"field {places[field.name] + 1}", f"field {place + 1}", "its values are written in order"
                )
            if place >= len(before.fields):
                if not field.default:
                    return Misfit(at, "nothing", str(field.type), "a new field needs a default for entries without it")
                continue
            was = before.fields[place]
            if self._earlier and was.name != field.name:
                return Misfit(at, f"{was.name}, {was.type}", str(field.type), "its values are written in order")
            wrong = self.at(was.type, field.type, at, inside, inside_now, False)
            if wrong is not None:
                return wrong
        if now.strict and len(before.fields) > len(now.fields):
            return Misfit(path, str(before), str(now), f"it takes no more than {len(now.fields)} fields")
        return None


def _fills_otherwise(before: FieldType, now: FieldType, path: str) -> Misfit | None:
    old, new = before.filled, now.filled
    if not before.absent or old in ("", MADE_ANEW) or not new:
        return None
    if new != MADE_ANEW and msgspec.json.decode(old) == msgspec.json.decode(new):  # 0 and 0.0
        return None
    why = "entries do not store a default, so their values would change"
    return Misfit(path, f"{old} by default", f"{new} by default", why)


def fields_said(names: Sequence[str]) -> str:
    return f"the field{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
