"""Reads a schema in Spark's form: `id INT, tags ARRAY<STRING>, at STRUCT<city: STRING>`, or a single type."""

import re
from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from barrier_runtime.data.sql.arguments import Unfit
from barrier_runtime.data.sql.casts import type_named

_TOKENS = re.compile(r"`[^`]+`|\w+|[<>(),:]")


def type_of_schema(text: str) -> pa.DataType:
    """Raises `Unfit` for text that is no schema, and for types that are not known."""
    if _TOKENS.sub("", text).strip():
        raise _invalid(text)
    try:
        return _whole(text, _Reader.type)
    except _NoSchema:
        pass
    try:
        return _whole(text, _Reader.fields)
    except _NoSchema:
        raise _invalid(text) from None


class _NoSchema(Exception):
    pass


def _invalid(text: str) -> Unfit:
    return Unfit(f"the schema is {text!r}: write names and types, as in 'id BIGINT, tags ARRAY<STRING>'")


def _whole(text: str, read: Callable[["_Reader"], pa.DataType]) -> pa.DataType:
    reader = _Reader(_TOKENS.findall(text))
    kind = read(reader)
    reader.end()
    return kind


class _Reader:
    """Tokens of a schema, from the first to the last."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]

    def _next(self) -> str:
        if not self._tokens:
            raise _NoSchema
        return self._tokens.pop()

    def _take(self, token: str) -> bool:
        found = bool(self._tokens) and self._tokens[-1].upper() == token
        if found:
            self._tokens.pop()
        return found

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise _NoSchema

    def end(self) -> None:
        if self._tokens:
            raise _NoSchema

    def fields(self) -> pa.DataType:
        found: list[tuple[str, pa.DataType]] = []
        while True:
            name = self._next()
            if name in "<>(),:":
                raise _NoSchema
            self._take(":")
            found.append((name.strip("`"), self.type()))
            if self._take("NOT"):
                self._need("NULL")
            if not self._take(","):
                break
        names = [name for name, _ in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Unfit(f"the schema has the field {twice[0]!r} twice")
        return pa.struct(found)

    def type(self) -> pa.DataType:
        name = self._next()
        if name.upper() not in ("ARRAY", "MAP", "STRUCT"):
            return self._plain(name)
        self._need("<")
        if name.upper() == "STRUCT":
            kind = self.fields()
        elif name.upper() == "ARRAY":
            kind = pa.list_(self.type())
        else:
            key = self.type()
            self._need(",")
            kind = pa.map_(key, self.type())
        self._need(">")
        return kind

    def _plain(self, name: str) -> pa.DataType:
        digits = ""
        if self._take("("):
            while not self._take(")"):
                digits += self._next()
        try:
            kind = exp.DataType.build(f"{name}({digits})" if digits else name, dialect="spark")
        except SqlglotError:
            raise _NoSchema from None
        if kind.this.name == "USERDEFINED":
            raise _NoSchema
        return type_named(kind)
