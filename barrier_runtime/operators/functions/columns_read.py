"""Columns that a user's function reads, from its bytecode. Design: docs/design/columns-read.md."""

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.rows import dicts, each_row_of, input_row, values_of, values_of_few
from barrier_runtime.operators.functions.instances import Instances, tried

Reads: TypeAlias = "frozenset[str] | Instances | None"
_MONITORING: Any = getattr(sys, "monitoring", None)


def rows_read(function: Any, position: int, rows: RowClass | None) -> "Reads":
    return columns_read(function, position) if rows is None else Instances(rows)


def each_row_read(batch: Batch, reads: "Reads") -> Iterator[Any]:
    """Yields an instance or dict per row, with the columns of the batch in `reads`; None: all columns."""
    if isinstance(reads, Instances):
        return reads.each(batch)
    if reads is None or _debugged():
        return each_row_of(batch)
    few = batch.few
    if few is None:
        rows = batch.rows
        names = [name for name in rows.schema.names if name in reads]
        columns = [values_of(rows.column(name)) for name in names]
    else:
        layout, at = few.layout, few.layout.positions_of(reads)
        names = [layout.names[each] for each in at]
        columns = [few.columns[each] for each in at]
        if layout.has_times:
            columns = [
                values_of_few(values, layout.types[each], layout.times[each])
                for each, values in zip(at, columns, strict=True)
            ]
    return dicts(names, columns) if names else ({} for _ in range(batch.count))


def each_row_tried(batch: Batch, reads: "Reads") -> Iterator[Any]:
    """As `each_row_read`, but yields an `Unmade` for a row of which no instance can be made."""
    rows = each_row_read(batch, reads)
    return tried(rows, len(batch)) if isinstance(reads, Instances) else rows


def row_again(batch: Batch, at: int, reads: Reads) -> Callable[[], Any]:
    if isinstance(reads, Instances):
        return lambda: next(each_row_read(batch.slice(at, 1), reads))
    return input_row(batch, at)


def _debugged() -> bool:
    if sys.gettrace() is not None:
        return True
    return _MONITORING is not None and _MONITORING.get_tool(_MONITORING.DEBUGGER_ID) is not None


_LOADS = frozenset(  # instructions after which the last variable named is on top of the stack
    {
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_LOAD_FAST",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "STORE_FAST_LOAD_FAST",
    }
)
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_CALLS = frozenset({"CALL", "CALL_METHOD"})
_FILLERS = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "PRECALL"})
_SEES_VARIABLES = frozenset(  # names of functions that look at their caller's variables
    {"_getframe", "breakpoint", "currentframe", "eval", "exec", "f_locals", "locals", "query", "set_trace", "stack"}
    | {"trace", "vars"}
)
_LONGEST_READ = 5  # instructions of `row.get("name", default)`


def columns_read(function: Any, position: int) -> frozenset[str] | None:
    """Columns that `function` reads of argument number `position`, the row; None: possibly all."""
    return _names_read(function, position, _name_read)


def attributes_read(function: Any, position: int) -> frozenset[str] | None:
    """Attributes that `function` reads of argument number `position`; None: possibly all."""
    return _names_read(function, position, _attribute)


def _names_read(
    function: Any, position: int, name_of: Callable[[Sequence[dis.Instruction]], str | None]
) -> frozenset[str] | None:
    """`name_of`: returns the name that the instructions after the argument read; None: they use it otherwise."""
    code, position = _code(function, position)
    if code is None or position >= code.co_argcount:
        return None
    argument = code.co_varnames[position]
    if argument in code.co_cellvars or not _SEES_VARIABLES.isdisjoint(_names(code)):
        return None
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _FILLERS]
    found = set[str]()
    for at, instruction in enumerate(instructions):
        named = _variables(instruction)
        if argument not in named:
            continue
        name = name_of(instructions[at + 1 : at + _LONGEST_READ])
        if instruction.opname not in _LOADS or named.index(argument) != len(named) - 1 or name is None:
            return None
        found.add(name)
    return frozenset(found)


def _code(function: Any, position: int) -> tuple[CodeType | None, int]:
    if type(function) is MethodType:
        function, position = function.__func__, position + 1
    return (function.__code__, position) if type(function) is FunctionType else (None, position)


def _names(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _variables(instruction: dis.Instruction) -> list[str]:
    return instruction.argrepr.split(", ") if "FAST" in instruction.opname else []


def _name_read(after: Sequence[dis.Instruction]) -> str | None:
    """Column that the instructions after loading the row read; None: the row is used otherwise."""
    if after and after[0].opname in ("LOAD_METHOD", "LOAD_ATTR"):
        return _name_got(after[1:]) if after[0].argval == "get" else None
    if len(after) < 2 or not _is_subscript(after[1]):
        return None
    return _text(after[0])


def _attribute(after: Sequence[dis.Instruction]) -> str | None:
    read = bool(after) and after[0].opname in ("LOAD_METHOD", "LOAD_ATTR")
    return str(after[0].argval) if read else None


def _name_got(after: Sequence[dis.Instruction]) -> str | None:
    """As `_name_read`, after `row.get`: one or two constants, and a call with these."""
    call = next((at for at, each in enumerate(after) if each.opname not in _CONSTANTS), 0)
    if not 1 <= call <= 2 or after[call].opname not in _CALLS or after[call].arg != call:
        return None
    return _text(after[0])


def _is_subscript(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or (instruction.opname, instruction.argrepr) == ("BINARY_OP", "[]")


def _text(constant: dis.Instruction) -> str | None:
    return constant.argval if constant.opname in _CONSTANTS and type(constant.argval) is str else None
