"""Functions of SQL that are computed value by value, for arguments of any type.

Arrow knows a function by its name, and each name has one list of types. So the name of a kernel contains the types of
its arguments and of its result, and any process can register the kernel from the name alone: see `register`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import Argument, Made

Kernel: TypeAlias = Callable[..., pa.Array]  # of the result's type and the columns of the arguments

_PREFIX = "barrier_runtime.rows."
_NAMES = re.compile(r"barrier_runtime\.rows\.\w+\.[0-9a-f]+")
_KERNELS: dict[str, Kernel] = {}
_registered: set[str] = set()


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    """Adds a kernel. Pickled expressions have its name, so names and meanings never change."""

    def added(function: Kernel) -> Kernel:
        assert name not in _KERNELS
        _KERNELS[name] = function
        return function

    return added


def value_kernel(name: str, function: Callable[..., Any]) -> None:
    """Adds a kernel that calls `function` with the values of each row; null if an argument is null."""

    def each(kind: pa.DataType, *columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return column([None if None in row else function(*row) for row in rows], kind)

    kernel(name)(each)


def call(name: str, kind: pa.DataType, *arguments: Argument) -> Made:
    """Expression of the kernel `name`, with a result of type `kind`."""
    types = pa.schema([("", each) for each in (kind, *(argument.type for argument in arguments))])
    full = f"{_PREFIX}{name}.{types.serialize().to_pybytes().hex()}"
    register(full)
    return pc.Expression._call(full, [argument.made for argument in arguments])


def kernels_of(expression: Made) -> list[str]:
    """Full names of the kernels that an expression calls."""
    return _NAMES.findall(str(expression))


def register(full: str) -> None:
    """Registers a kernel in this process."""
    if full in _registered:
        return
    name, _, types = full.removeprefix(_PREFIX).partition(".")
    kind, *given = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(types))).types
    function = _KERNELS[name]

    def computed(context: Any, *arguments: Any) -> pa.Array:
        return function(kind, *(_column(each, context.batch_length) for each in arguments))

    about = {"summary": name, "description": "see barrier_runtime/data/sql/row_kernels.py"}
    pc.register_scalar_function(computed, full, about, {f"argument_{at}": each for at, each in enumerate(given)}, kind)
    _registered.add(full)


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _column(given: pa.Array | pa.Scalar, rows: int) -> pa.Array:
    return pa.array([given.as_py()] * rows, given.type) if isinstance(given, pa.Scalar) else given
