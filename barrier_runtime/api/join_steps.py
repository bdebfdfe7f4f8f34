"""Bodies of `KeyedStream`'s joins: checks and steps."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrier_runtime.api.steps import WINDOW_END, WINDOW_START, KeyedInput, warn_of_updates
from barrier_runtime.data.event_time import Detail, check_event_time_type
from barrier_runtime.data.keys import check_key_type
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.data.schemas import Duration, as_duration, milliseconds, require_columns
from barrier_runtime.graph.logical import Input, StepNode, Within
from barrier_runtime.graph.updates import every_update_joins
from barrier_runtime.operators.windows.assigners import KnownWindows, WindowAssigner
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.operators.joins.as_of import AsOfKind
    from barrier_runtime.operators.joins.base import Side
    from barrier_runtime.operators.joins.interval import JoinKind

_FAR = datetime.timedelta(days=36_500)


@dataclass(frozen=True)
class JoinOptions:
    event_time: str | tuple[str, str] | None  # None: rows count in order of arrival
    suffix: tuple[str, str]
    late: bool


@dataclass(frozen=True)
class JoinStep:
    node: StepNode
    schema: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)  # of late rows


_EVERY_ROW_JOINS = ("join", "window_join")  # each row of a side meets every row of the other


def event_times(
    left: KeyedInput, right: KeyedInput, where: str, window: WindowAssigner | None = None
) -> tuple[str, str]:
    found = []
    for which, side in (("left", left), ("right", right)):
        its = f"{where}, {which} stream"
        side.need_watermarks(its, "rows are held until the watermark says that no partner can come")
        column = side.event_time(its, window if isinstance(window, WindowAssigner) else None)
        if column is None:
            raise InvalidJob(
                f"{its}: pass event_time=, the column that has the time of a row, or a pair of columns, because a step "
                "before the join has changed the columns"
            )
        found.append(column)
    return found[0], found[1]


def interval_join(
    name: str,
    left: KeyedInput,
    right: KeyedInput,
    between: tuple[Duration, Duration],
    how: "JoinKind",
    options: JoinOptions,
) -> JoinStep:
    from barrier_runtime.operators.joins.base import JoinColumns
    from barrier_runtime.operators.joins.interval import JOIN_KINDS, IntervalJoinOperator, interval_definition

    where = f"join {name!r}"
    if not isinstance(between, Sequence) or isinstance(between, str) or len(between) != 2:
        raise InvalidJob(
            f"{where}: between={between!r}: pass two timedeltas, or seconds, the least and the greatest time of the "
            "right row less that of the left one, as in between=(timedelta(0), timedelta(hours=1))"
        )
    lower, upper = (as_duration(bound, f"a bound of between={between!r} of {where}") for bound in between)
    if lower > upper:
        raise InvalidJob(
            f"{where}: between={lower} and {upper}: the first bound is greater, so nothing would match: exchange them"
        )
    if max(abs(lower), abs(upper)) > _FAR:
        raise InvalidJob(f"{where}: between={lower} and {upper}: use bounds of at most 100 years")
    _check_how(how, JOIN_KINDS, where)
    sides = _sides(left, right, options, where)
    columns = JoinColumns(*sides, options.suffix, where, how not in ("semi", "anti"))
    make = partial(
        IntervalJoinOperator, left=sides[0], right=sides[1], between=(lower, upper), how=how, suffix=options.suffix,
        late=options.late,
    )  # fmt: skip
    definition = interval_definition(*sides, (lower, upper), how)
    # Either time of a pair may be the older one; the watermark after the join is behind both.
    times = {columns.left_name(sides[0].event_time)}
    times |= {columns.right_name(sides[1].event_time)} if how not in ("semi", "anti") else set()
    return _step(name, "join", left, right, make, definition, columns.schema, options, frozenset(times))


def window_join(
    name: str, left: KeyedInput, right: KeyedInput, window: WindowAssigner, how: "JoinKind", options: JoinOptions
) -> JoinStep:
    from barrier_runtime.operators.joins.interval import (
        JOIN_KINDS,
        WindowJoinOperator,
        window_columns,
        window_definition,
    )

    where = f"window_join {name!r}"
    if not isinstance(window, WindowAssigner):
        raise InvalidJob(f"{where}: {window!r} is not a window: pass Tumbling(timedelta(…)) or Sliding")
    if not isinstance(window, KnownWindows) or window.not_joined:
        raise InvalidJob(
            f"{where}: {window.not_joined}: use Tumbling or Sliding, or join() with the bounds between= "
            "which rows belong together"
        )
    _check_how(how, JOIN_KINDS, where)
    sides = _sides(left, right, options, where, window)
    columns = window_columns(*sides, how, options.suffix, where)
    make = partial(
        WindowJoinOperator, left=sides[0], right=sides[1], window=window, how=how, suffix=options.suffix,
        late=options.late,
    )  # fmt: skip
    times = {WINDOW_START, WINDOW_END, columns.left_name(sides[0].event_time)}
    times |= {columns.right_name(sides[1].event_time)} if how not in ("semi", "anti") else set()
    definition = window_definition(*sides, window, how)
    step = _step(name, "window_join", left, right, make, definition, columns.schema, options, frozenset(times))
    within = frozenset([Within(WINDOW_START, window, "start of pair"), Within(WINDOW_END, window, "end")])
    return replace(step, node=replace(step.node, within=within))


def as_of_join(
    name: str,
    left: KeyedInput,
    right: KeyedInput,
    tolerance: Duration | None,
    exact: bool,
    how: "AsOfKind",
    options: JoinOptions,
) -> JoinStep:
    from barrier_runtime.operators.joins.as_of import AS_OF_KINDS, AsOfJoinOperator, as_of_definition
    from barrier_runtime.operators.joins.base import JoinColumns

    where = f"asof_join {name!r}"
    if tolerance is not None:
        tolerance = as_duration(tolerance, f"tolerance of {where}")
        milliseconds(tolerance, f"tolerance of {where}")
        if tolerance > _FAR:
            raise InvalidJob(f"{where}: tolerance={tolerance}: use at most 100 years, or None for none")
    if not isinstance(exact, bool):
        raise InvalidJob(f"{where}: exact={exact!r}: use True or False (whether a version of the same time counts)")
    _check_how(how, AS_OF_KINDS, where)
    sides = _sides(left, right, options, where)
    columns = JoinColumns(*sides, options.suffix, where)
    make = partial(
        AsOfJoinOperator, left=sides[0], right=sides[1], tolerance=tolerance, exact=exact, how=how,
        suffix=options.suffix, late=options.late,
    )  # fmt: skip
    definition = as_of_definition(*sides, tolerance, exact, how)
    times = frozenset([columns.left_name(sides[0].event_time)])
    return _step(name, "asof_join", left, right, make, definition, columns.schema, options, times)


def table_join(
    name: str, left: KeyedInput, right: KeyedInput, deleted: str | None, how: "AsOfKind", options: JoinOptions
) -> JoinStep:
    from barrier_runtime.operators.joins.as_of import (
        AS_OF_KINDS,
        NewestTableJoinOperator,
        VersionedTableJoinOperator,
        table_columns,
        table_definition,
    )

    where = f"table_join {name!r}"
    _check_how(how, AS_OF_KINDS, where)
    newest = options.event_time is None
    if newest and options.late is not False:
        raise InvalidJob(f"{where}: without event_time= no row is late: leave late={options.late!r} out")
    sides = _sides(left, right, options, where)
    _check_deleted(deleted, sides[1], where)
    columns = table_columns(*sides, deleted, options.suffix, where)
    definition = table_definition(*sides, deleted, how)
    settings: dict[str, Any] = {
        "left": sides[0], "right": sides[1], "deleted": deleted, "how": how, "suffix": options.suffix,
    }  # fmt: skip
    if not newest:
        make = partial(VersionedTableJoinOperator, late=options.late, **settings)
        times = frozenset([columns.left_name(sides[0].event_time)])
        return _step(name, "table_join", left, right, make, definition, columns.schema, options, times)
    step = _step(
        name, "table_join", left, right, partial(NewestTableJoinOperator, **settings), definition, columns.schema,
        options,
    )  # fmt: skip
    why = "a row gets what the table has when it comes"
    return replace(step, node=replace(step.node, detail="none", whole_batches=True, timeless=True, by_wall_clock=why))


def _check_deleted(deleted: str | None, table: "Side", where: str) -> None:
    if deleted is None:
        return
    its = f"{where}, right stream"
    require_columns(table.schema, (deleted,), its)
    kind = table.schema.field(deleted).type
    if not pa.types.is_boolean(kind) or deleted in (*table.keys, table.event_time):
        raise InvalidJob(
            f"{its}: deleted={deleted!r} is {kind}: pass a column of booleans that is not a key, true in rows that "
            """delete their key; select() makes one, as in .select({"gone": "op = 'D'", …})"""
        )


def _step(
    name: str,
    kind: str,
    left: KeyedInput,
    right: KeyedInput,
    make: Callable[..., Any],
    definition: str,
    schema: pa.Schema,
    options: JoinOptions,
    event_times: frozenset[str] | None = None,
) -> JoinStep:
    from barrier_runtime.operators.joins.base import LATE_LEFT, LATE_RIGHT, join_keys_said

    late = {}
    if options.late and left.schema is not None and right.schema is not None:
        late = {LATE_LEFT: left.schema, LATE_RIGHT: right.schema}
    told = ""
    if kind in _EVERY_ROW_JOINS:
        for side in (left, right):
            told = warn_of_updates(side, f"{kind} {name!r}", partial(every_update_joins, keys=side.keys)) or told
    inputs = tuple(Input(side.node, "hash", side.keys, side.tag) for side in (left, right))
    given = options.event_time
    columns = (given, given) if isinstance(given, str) else given or (None, None)
    looks_at = [side.detail_of_late(column) for side, column in zip((left, right), columns, strict=True)]
    detail: Detail = "rows" if "rows" in looks_at else "late"
    node = StepNode(
        name, kind, inputs, make, schema, stateful=True, describe=definition, definition=definition, detail=detail,
        side_outputs=late, event_times=event_times, counts_updates=told,
        keys=join_keys_said(left.schema, left.keys, right.schema, right.keys),
    )  # fmt: skip
    return JoinStep(node, schema, late)


def _sides(
    left: KeyedInput, right: KeyedInput, options: JoinOptions, where: str, window: WindowAssigner | None = None
) -> "tuple[Side, Side]":
    from barrier_runtime.operators.joins.base import Side

    if left.plan is not right.plan:
        raise InvalidJob(
            f"{where}: the right stream is of flow {right.plan.name!r}, the left one of {left.plan.name!r}: read both "
            "in one flow"
        )
    if len(left.keys) != len(right.keys):
        raise InvalidJob(
            f"{where}: the left stream has the keys ({', '.join(left.keys)}), the right one ({', '.join(right.keys)}): "
            "key both by as many columns, in the same order"
        )
    _check_options(options, where)
    given = "" if options.event_time is None else options.event_time
    names = (given, given) if isinstance(given, str) else given
    sides = []
    for which, side, event_time in zip(("left", "right"), (left, right), names, strict=True):
        its = f"{where}, {which} stream"
        if side.schema is None:
            raise InvalidJob(
                f"{its}: its columns are not known before its first row, and a join gives the columns of both: pass "
                "schema= to the step before it"
            )
        for key in side.keys:
            check_key_type(side.schema.field(key).type, key, its)
        missing: Sequence[str] = ()
        if event_time:
            require_columns(side.schema, (event_time,), its)
            check_event_time_type(side.schema.field(event_time).type, event_time, its)
            missing = side.plan.without_watermarks(side.node)
        if missing:
            raise InvalidJob(
                f"{its}: rows are held until the watermark says that no partner can come, but of its sources "
                f"{', '.join(map(repr, missing))} {'has' if len(missing) == 1 else 'have'} no watermarks: pass "
                "event_time= where the source is read, or call with_watermarks(column) on the stream before"
            )
        if event_time:
            side.expect_event_time(event_time, its, window)
        sides.append(Side(side.keys, event_time, plain_schema(side.schema)))
    for one, other in zip(left.keys, right.keys, strict=True):
        kinds = sides[0].schema.field(one).type, sides[1].schema.field(other).type
        if kinds[0] != kinds[1]:
            raise InvalidJob(
                f"{where}: the key {one!r} is {kinds[0]} on the left, and {other!r} is {kinds[1]} on the right: cast "
                f'one of them before key_by, as in .select({{"{other}": "CAST({other} AS BIGINT)", …}})'
            )
    return sides[0], sides[1]


def _check_options(options: JoinOptions, where: str) -> None:
    times, suffix = options.event_time, options.suffix
    if times is not None and not (isinstance(times, str) and times) and not (_is_pair(times) and all(times)):
        raise InvalidJob(
            f"{where}: event_time={times!r}: pass the name of the column, or two names, of the left and the right one"
        )
    if not _is_pair(suffix) or suffix[0] == suffix[1]:
        raise InvalidJob(f'{where}: suffix={suffix!r}: pass two different endings of names, as in ("", "_right")')
    if not isinstance(options.late, bool):
        raise InvalidJob(f"{where}: late={options.late!r}: use True for streams of the late rows as well")


def _is_pair(names: Any) -> bool:
    return isinstance(names, tuple | list) and len(names) == 2 and all(isinstance(name, str) for name in names)


def _check_how(how: str, kinds: Sequence[str], where: str) -> None:
    if how not in kinds:
        raise InvalidJob(f"{where}: how={how!r}: use one of {', '.join(kinds)}")
