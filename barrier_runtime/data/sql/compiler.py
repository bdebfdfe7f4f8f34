"""Compiles the tree of a SQL expression to Arrow's. See `expression` for the meaning."""

import datetime
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from barrier_runtime.data.expressions import evaluated_types
from barrier_runtime.data.schemas import described, meant
from barrier_runtime.data.sql.arguments import (
    MOST_DIGITS,
    Argument,
    Made,
    Needed,
    Unfit,
    as_number,
    as_time,
    beside_each_other,
    in_pairs,
    is_exact,
    is_number,
    one_of,
    one_time,
    one_type,
)
from barrier_runtime.data.sql.casts import cast, constant_of, type_named
from barrier_runtime.data.sql.collections import element, field_of
from barrier_runtime.data.sql.functions import FUNCTIONS, IGNORED, MAY_FAIL, OF_TIMES, known
from barrier_runtime.data.sql.kernels import remainder, whole_quotient, with_whole_digit
from barrier_runtime.data.sql.named import NAMED, NEVER_FAIL
from barrier_runtime.data.sql.numbers import BITS, inverted
from barrier_runtime.data.sql.texts import time_constant
from barrier_runtime.state.errors import InvalidJob

_ARITHMETIC: dict[type[exp.Expr], Callable[[Any, Any], Made]] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
}
_COMPARISONS: dict[type[exp.Expr], Callable[[Any, Any], Made]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
}
_TOO_MANY_DIGITS = (
    f"a decimal has at most {MOST_DIGITS} digits, and this result may need more: CAST the operands to fewer, as in "
    "CAST(price AS DECIMAL(18, 4))"
)
_FALSE, _TRUE = pc.scalar(False), pc.scalar(True)
_DAY = datetime.timedelta(days=1)
# arguments of nodes that are not functions; all others are refused
_HANDLED = frozenset({"this", "expression", "expressions", "low", "high", "ifs", "default", "true", "false", "to"})
_HANDLED |= {"table", "db", "catalog", "query", "unnest", "typed"}
_TEXTS = (pa.large_string(), pa.string_view())  # as pandas and other table libraries make them; cast to string
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)


def plain_name(node: exp.Expr) -> str:
    """Returns the operation in lower case: `substring`, `add`."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else node.key


class Compiler:
    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._schema = schema
        self._where = where
        self._needed = Needed()

    def argument(self, node: exp.Expr) -> Argument:
        if isinstance(node, exp.Paren):
            return self.argument(node.this)
        if isinstance(node, exp.Var):
            return Argument(pc.scalar(node.name), pa.string(), True, node.name)
        is_constant, value = constant_of(node)
        if is_constant:
            scalar = value if isinstance(value, pa.Scalar) else self._scalar(value)
            return Argument(pc.scalar(scalar), scalar.type, True, scalar.as_py())
        try:
            made = self._made(node)
            kind = evaluated_types(self._schema, [made], self._where)[0]
        except Unfit as error:
            raise InvalidJob(f"{self._where}: {node.sql('spark')}: {error}") from error
        except InvalidJob as error:
            mixed = re.search(r"no kernel matching input types \((.*?)\)\. |precision out of range", str(error))
            if mixed is None:
                raise
            said = _TOO_MANY_DIGITS
            if mixed[1]:
                said = f"{mixed[1].replace(', ', ' and ')} do not go together: CAST what has another type"
            raise InvalidJob(f"{self._where}: {node.sql('spark')}: {said}") from error
        return Argument(made, kind, False, None)

    def _scalar(self, value: Any) -> pa.Scalar:
        if type(value) is int:
            if value not in _INT64:
                raise InvalidJob(f"{self._where}: {value} is beyond 64 bits: use a double, such as {value}e0")
            return pa.scalar(value, pa.int32() if value in _INT32 else pa.int64())
        return pa.scalar(value)

    def result(self, node: exp.Expr) -> Made:
        """Makes the type explicit, because Arrow makes constants as narrow as possible."""
        argument = self.argument(node)
        return argument.made.cast(argument.type) if pa.types.is_primitive(argument.type) else argument.made

    def _made(self, node: exp.Expr) -> Made:
        if node.args.get("negate"):  # NOT LIKE, NOT IN
            positive = node.copy()
            positive.set("negate", None)
            return pc.invert(self._made(positive))
        kind = type(node)
        if kind not in FUNCTIONS:
            self._check_arguments(node, _HANDLED)
        if kind in _ARITHMETIC:
            return self._arithmetic(node)
        if kind in _COMPARISONS:
            return _COMPARISONS[kind](*self._beside_each_other(*self._sides(node)))
        if kind in _SPECIAL:
            return _SPECIAL[kind](self, node)
        if kind in FUNCTIONS:
            return self._call(node)
        if isinstance(node, exp.Anonymous) and plain_name(node) in NAMED:
            return self._named(node)
        raise InvalidJob(f"{self._where}: {node.sql('spark')} is not known here: use a pyarrow.compute expression")

    def _sides(self, node: exp.Expr) -> tuple[Argument, Argument]:
        """Compiles each side once: otherwise work on long sums would be exponential."""
        return self.argument(node.this), self.argument(node.expression)

    def _sides_that_may_fail(self, node: exp.Expr) -> tuple[Argument, Argument]:
        """As `_sides`, with nulls for rows that do not need the result."""
        left, right = self._sides(node)
        divides = isinstance(node, exp.Div | exp.IntDiv | exp.Mod)
        never_fails = _divides(right) and not (isinstance(node, exp.IntDiv) and not pa.types.is_integer(left.type))
        if never_fails if divides else any(pa.types.is_floating(side.type) for side in (left, right)):
            return left, right
        return (self._needed.only(left), right) if right.is_constant else (left, self._needed.only(right))

    def _beside_each_other(self, left: Argument, right: Argument) -> tuple[Made, Made]:
        left, right = _as_time(left, right), _as_time(right, left)
        if pa.types.is_timestamp(left.type) and pa.types.is_timestamp(right.type):
            kind = one_time([left.type, right.type])
            return as_time(left, kind), as_time(right, kind)
        return self._beside(left, right), self._beside(right, left)

    def _arithmetic(self, node: exp.Expr) -> Made:
        left, right = self._sides_that_may_fail(node)
        made = _ARITHMETIC[type(node)](*self._beside_each_other(left, right))
        day, span = (right, left) if pa.types.is_duration(left.type) else (left, right)
        if pa.types.is_date(day.type) and pa.types.is_duration(span.type) and span.is_constant:
            return made if span.value % _DAY else made.cast(day.type)
        return made

    def _beside(self, one: Argument, other: Argument) -> Made:
        if pa.types.is_null(one.type):
            return pc.scalar(pa.scalar(None, pa.int32() if pa.types.is_null(other.type) else other.type))
        if is_number(other.type) and one.is_constant and isinstance(one.value, str):
            try:
                number = self._scalar(int(one.value) if one.value.strip().lstrip("-").isdigit() else float(one.value))
            except ValueError as error:
                raise InvalidJob(f"{self._where}: {one.value!r} is not a number") from error
            one = Argument(pc.scalar(number), number.type, True, number.as_py())
        if is_number(one.type) and is_number(other.type):
            if pa.types.is_decimal(other.type) and one.is_constant and pa.types.is_integer(one.type):
                return pc.scalar(pa.scalar(one.value, pa.decimal128(len(str(abs(one.value))))))
            kinds = one.type, other.type
            if any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds)):
                return one.made
            return as_number(one, one_type([one, other]))
        return one.made

    def _call(self, node: exp.Expr) -> Made:
        names, make = FUNCTIONS[type(node)]
        self._check_arguments(node, frozenset(name.rstrip("?*") for name in names))
        arguments = self._arguments(node, names)
        if type(node) in MAY_FAIL:
            arguments = map(self._needed.only, arguments)
        elif type(node) in OF_TIMES:
            arguments = (self._needed.only(each) if pa.types.is_string(each.type) else each for each in arguments)
        return make(*arguments)

    def _named(self, node: exp.Anonymous) -> Made:
        name = plain_name(node)
        least, most, make = NAMED[name]
        if len(node.expressions) < least:
            raise InvalidJob(f"{self._where}: {node.sql('spark')}: an argument is missing")
        if most is not None and len(node.expressions) > most:
            raise InvalidJob(f"{self._where}: {node.sql('spark')}: {name} takes {most} arguments at most")
        arguments = map(self.argument, node.expressions)
        return make(*(arguments if name in NEVER_FAIL else map(self._needed.only, arguments)))

    def _bracket(self, node: exp.Bracket) -> Made:
        collection, (key, *more) = self.argument(node.this), map(self.argument, node.expressions)
        if more:
            raise InvalidJob(f"{self._where}: {node.sql('spark')}: one position or key stands in brackets")
        return element(self._needed.only(collection), key, 0, "fail")

    def _dot(self, node: exp.Dot) -> Made:
        return field_of(self.argument(node.this), node.expression.name)

    def _struct(self, node: exp.Struct) -> Made:
        names, made = list[str](), list[Made]()
        for number, each in enumerate(node.expressions, 1):
            named = isinstance(each, exp.PropertyEQ)
            value = each.expression if named else each
            names.append(each.this.name if named else value.name if isinstance(value, exp.Column) else f"col{number}")
            made.append(self.argument(value).made)
        return pc.make_struct(*made, field_names=names)

    def _bits(self, node: exp.Expr) -> Made:
        return BITS[type(node)](*self._sides(node))

    def _bits_inverted(self, node: exp.Expr) -> Made:
        return inverted(self.argument(node.this))

    def _date(self, node: exp.Expr) -> Made:
        if node.this is None:
            raise InvalidJob(f"{self._where}: an argument is missing")
        return cast(self._needed.only(self.argument(node.this)), pa.date32())

    def _check_arguments(self, node: exp.Expr, known: frozenset[str]) -> None:
        for name, value in node.args.items():
            if value and name not in known and name not in IGNORED:
                raise InvalidJob(
                    f"{self._where}: {node.sql('spark')}: {plain_name(node)} has no {name} here: leave it out"
                )

    def _arguments(self, node: exp.Expr, names: tuple[str, ...]) -> Iterator[Argument]:
        for name in names:
            value = node.args.get(name.rstrip("?*"))
            if not value and not name.endswith(("?", "*")):
                raise InvalidJob(f"{self._where}: {node.sql('spark')}: an argument is missing")
            if isinstance(value, list):
                yield from map(self.argument, value)
            elif isinstance(value, str):
                yield Argument(pc.scalar(value), pa.string(), True, value)
            elif value is not None:
                yield self.argument(value)

    def _column(self, node: exp.Column) -> Made:
        """The case of letters may differ if the name is unique."""
        path: list[str] = []
        names, kind = self._schema.names, None
        for part in (each.name for each in node.parts):
            if kind is not None:
                names = [field.name for field in kind.fields] if pa.types.is_struct(kind) else []
            found = [name for name in names if name == part] or [n for n in names if n.lower() == part.lower()]
            if len(found) != 1:
                what = f"field {part!r} of {'.'.join(path)}" if path else f"column {part!r}"
                raise InvalidJob(
                    f"{self._where}: there is {'more than one' if found else 'no'} {what}"
                    f"{'' if found else meant(part, names)}: the rows have {described(self._schema)}. Text stands in "
                    "single quotes"
                )
            kind = self._schema.field(found[0]).type if kind is None else kind.field(found[0]).type
            path += found
        return pc.field(*path).cast(pa.string()) if kind in _TEXTS else pc.field(*path)

    def _truth(self, node: exp.Expr) -> Made:
        argument = self.argument(node)
        return pc.scalar(pa.scalar(None, pa.bool_())) if pa.types.is_null(argument.type) else argument.made

    def _and(self, node: exp.Expr) -> Made:
        return self._one_by_one(node, pc.and_kleene, lambda true: pc.coalesce(true, _TRUE))

    def _or(self, node: exp.Expr) -> Made:
        return self._one_by_one(node, pc.or_kleene, lambda true: pc.invert(pc.coalesce(true, _FALSE)))

    def _one_by_one(
        self, node: exp.Expr, joined: Callable[[Made, Made], Made], goes_on: Callable[[Made], Made]
    ) -> Made:
        """Joins terms; a term is needed only for rows undecided by the terms before."""
        first, *rest = node.flatten()
        with self._needed.scope():
            true, inside = self._condition(first)
            terms = [true]
            for each in rest:
                self._needed.narrow(goes_on(true), inside)
                true, inside = self._condition(each)
                terms.append(true)
        return in_pairs(joined, terms)

    def _condition(self, node: exp.Expr) -> tuple[Made, int]:
        """A condition, and its number of `only` calls."""
        before = self._needed.made
        return self._truth(node), self._needed.made - before

    def _not(self, node: exp.Expr) -> Made:
        return pc.invert(self._truth(node.this))

    def _negative(self, node: exp.Expr) -> Made:
        return pc.negate_checked(self._needed.only(self.argument(node.this)).made)

    def _divide(self, node: exp.Expr) -> Made:
        return _quotient(*self._sides_that_may_fail(node))

    def _integer_divide(self, node: exp.Expr) -> Made:
        left, right = self._sides_that_may_fail(node)
        kinds = left.type, right.type
        if any(map(pa.types.is_decimal, kinds)) and all(map(is_exact, kinds)):
            return whole_quotient(with_whole_digit(left, right), right)
        if not all(map(pa.types.is_integer, kinds)):
            return pc.trunc(_quotient(left, right)).cast(pa.int64())
        kind = one_type([left, right])
        if pa.types.is_decimal(kind):
            raise InvalidJob(
                f"{self._where}: {node.sql('spark')}: {left.type} and {right.type} do not go together: CAST one"
            )
        kind = kind if kind == pa.uint64() else pa.int64()
        return pc.divide_checked(as_number(left, kind), as_number(right, kind)).cast(pa.int64())

    def _remainder(self, node: exp.Expr) -> Made:
        left, right = self._sides_that_may_fail(node)
        numbers = [side for side in (left, right) if is_number(side.type)]
        kind = one_type(numbers) if numbers else pa.int32()
        return remainder(*self._beside_each_other(with_whole_digit(left, right), right), kind)

    def _same(self, node: exp.Expr) -> Made:
        left, right = self._beside_each_other(*self._sides(node))
        return pc.if_else(
            pc.or_kleene(pc.is_null(left), pc.is_null(right)),
            pc.and_kleene(pc.is_null(left), pc.is_null(right)),
            pc.equal(left, right),
        )

    def _is(self, node: exp.Expr) -> Made:
        value = self.argument(node.this).made
        if isinstance(node.expression, exp.Null):
            return pc.is_null(value)
        if isinstance(node.expression, exp.Boolean):
            return pc.coalesce(value == pc.scalar(bool(node.expression.this)), _FALSE)
        raise InvalidJob(f"{self._where}: {node.sql('spark')}: IS is followed by NULL, TRUE or FALSE")

    def _between(self, node: exp.Expr) -> Made:
        value, low, high = node.this, node.args["low"], node.args["high"]
        return pc.and_kleene(
            self._made(exp.GTE(this=value, expression=low)), self._made(exp.LTE(this=value, expression=high))
        )

    def _in(self, node: exp.Expr) -> Made:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise InvalidJob(f"{self._where}: {node.sql('spark')}: IN is followed by values in parentheses")
        value, *listed = map(self.argument, [node.this, *node.expressions])
        return one_of(value, listed, lambda each: pc.equal(*self._beside_each_other(value, each)))

    def _case(self, node: exp.Expr) -> Made:
        results, conditions = list[Argument](), list[Made]()
        with self._needed.scope():
            for branch in node.args["ifs"]:
                condition = branch.this if node.this is None else exp.EQ(this=node.this, expression=branch.this)
                true, inside = self._condition(condition)
                conditions.append(pc.coalesce(true, _FALSE))
                with self._needed.scope():
                    self._needed.narrow(conditions[-1], inside)
                    results.append(self.argument(branch.args["true"]))
                self._needed.narrow(pc.invert(conditions[-1]), inside)
            results.append(self.argument(node.args.get("default") or exp.Null()))
        *made, taken = beside_each_other(results)
        for condition, result in zip(reversed(conditions), reversed(made), strict=True):
            taken = pc.if_else(condition, result, taken)
        return taken

    def _coalesce(self, node: exp.Expr) -> Made:
        given = list[Argument]()
        with self._needed.scope():
            for each in (node.this, *node.expressions):
                before = self._needed.made
                given.append(self.argument(each))
                self._needed.narrow(pc.is_null(given[-1].made), self._needed.made - before)
        return pc.coalesce(*known(given))

    def _if(self, node: exp.Expr) -> Made:
        return self._case(exp.Case(ifs=[node], default=node.args.get("false")))

    def _cast(self, node: exp.Expr) -> Made:
        if node.args.get("safe"):
            raise Unfit(
                "try_cast is not known here: use cast behind a test, as in CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS "
                "INT) END, or map(…, on_error='side')"
            )
        return cast(self._needed.only(self.argument(node.this)), type_named(node.args["to"]))


def _as_time(one: Argument, other: Argument) -> Argument:
    if (
        one.is_constant
        and isinstance(one.value, str)
        and (pa.types.is_timestamp(other.type) or pa.types.is_date(other.type))
    ):
        time = time_constant(one.value, other.type)
        return Argument(pc.scalar(time), time.type, True, time.as_py())
    return one


def _divides(divisor: Argument) -> bool:
    return divisor.is_constant and type(divisor.value) in (int, float) and divisor.value not in (0, -1)


def _quotient(left: Argument, right: Argument) -> Made:
    return pc.divide_checked(as_number(left, pa.float64()), as_number(right, pa.float64()))


_SPECIAL: dict[type[exp.Expr], Callable[[Compiler, Any], Made]] = {
    exp.Column: Compiler._column,
    exp.And: Compiler._and,
    exp.Or: Compiler._or,
    exp.Not: Compiler._not,
    exp.Neg: Compiler._negative,
    exp.Div: Compiler._divide,
    exp.IntDiv: Compiler._integer_divide,
    exp.Mod: Compiler._remainder,
    exp.NullSafeEQ: Compiler._same,
    exp.Is: Compiler._is,
    exp.Between: Compiler._between,
    exp.In: Compiler._in,
    exp.Case: Compiler._case,
    exp.Coalesce: Compiler._coalesce,
    exp.If: Compiler._if,
    exp.Cast: Compiler._cast,
    exp.TryCast: Compiler._cast,
    exp.TsOrDsToDate: Compiler._date,
    exp.Bracket: Compiler._bracket,
    exp.Dot: Compiler._dot,
    exp.Struct: Compiler._struct,
    exp.BitwiseNot: Compiler._bits_inverted,
    **dict.fromkeys(BITS, Compiler._bits),
}
