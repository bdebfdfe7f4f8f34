"""Copies of users' objects for subtasks; finds the variable that cannot be copied, such as a lock.

The search covers everything that a function refers to; libraries' data counts as copyable, and nothing is pickled.
"""

import copy
import copyreg
import inspect
import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import partial
from itertools import chain, islice
from types import CodeType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any, TypeVar
from weakref import WeakSet

from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob

_DATA = ("numpy", "pyarrow", "pandas", "polars", "datetime", "decimal")
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type(...), range, slice)
_BY_CLOUDPICKLE = (ModuleType, CodeType, GetSetDescriptorType, TypeVar, WeakSet, memoryview, property)
_MADE_ANEW = ("__", "_abc_impl")
_ELEMENTS = 100
_OBJECTS = 10_000


Kept = TypeVar("Kept")


def own_copy(value: Kept, what: str) -> Kept:
    """Returns a subtask's copy of `value`: subtasks must not share attributes or connections.

    `what` names the value in the `InvalidJob`.
    """
    try:
        return copy.deepcopy(value)
    except (BarrierRuntimeError, MemoryError):
        raise
    except Exception as error:  # every object may refuse with an error of its own
        found = uncopyable(value)
        which = f" ({found})" if found else ""
        raise InvalidJob(
            f"{what}: each subtask works with a copy of {type(value).__name__}, and copying it{which} raised "
            f"{type(error).__name__}: {error}. Make what cannot be copied in open(), or give a class or function that "
            "makes the object"
        ) from error


def own_function(
    function: Any, method: str, what: str, failed: Callable[[Exception, Any], Exception]
) -> tuple[Any, Any]:
    """Returns a subtask's own object of a user's class or object, and `method`; a plain function twice.

    `what` names the step in errors.
    """
    target = function
    if isinstance(function, type):
        try:
            target = function()
        except Exception as error:
            raise failed(error, function) from error
    elif hasattr(function, method):
        target = own_copy(function, what)
    return target, getattr(target, method, target)


def uncopyable(value: Any) -> str:
    """Returns the first uncopyable variable, as in "`lock` of label(), a _thread.lock"; "": none."""
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("", value)]
    kept = []  # so no id is reused
    while todo and len(seen) < _OBJECTS:
        path, found = todo.pop()
        if id(found) in seen or isinstance(found, _ATOMS + _BY_CLOUDPICKLE):
            continue
        seen.add(id(found))
        kept.append(found)
        try:
            todo += reversed(list(_parts(path, found)))
        except BarrierRuntimeError:
            continue
        except Exception:  # every object may refuse with an error of its own
            return f"{path}, a {type(found).__module__}.{type(found).__qualname__}".replace(" builtins.", " ")
    return ""


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        of = f" of {function_name(value)}"
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((f"`{name}`{of}", cell.cell_contents) for name, cell in cells if _filled(cell))
        yield from ((f"a default{of}", each) for each in value.__defaults__ or ())
        if _by_value(value):
            names = (name for name in _names(value.__code__) if name in value.__globals__)
            yield from ((f"`{name}`{of}", value.__globals__[name]) for name in names)
    elif isinstance(value, MethodType):
        yield path, value.__self__
        yield path, value.__func__
    elif isinstance(value, partial):
        yield from ((path, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, type):
        if _by_value(value):
            own = ((name, each) for name, each in vars(value).items() if not name.startswith(_MADE_ANEW))
            yield from ((f"`{name}` of class {value.__name__}", each) for name, each in own)
    elif isinstance(value, Mapping):
        yield from ((path, each) for each in islice(chain(value.keys(), value.values()), _ELEMENTS))
    elif isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        yield from ((path, each) for each in islice(value, _ELEMENTS))
    elif isinstance(value, classmethod | staticmethod):
        yield path, value.__func__
    elif type(value).__module__.partition(".")[0] not in _DATA:
        reduced = copyreg.dispatch_table.get(type(value))
        state = value.__reduce_ex__(4) if reduced is None else reduced(value)
        state = state[2] if isinstance(state, tuple) and len(state) > 2 else None
        for each in state if isinstance(state, tuple) else (state,):
            inner = each.items() if isinstance(each, dict) else [("", each)]
            yield from ((f"`{name}` of {path or type(value).__name__}" if name else path, part) for name, part in inner)


def _by_value(defined: Any) -> bool:
    """True if pickled by value, because other processes cannot import `defined`."""
    module = sys.modules.get(defined.__module__)
    return defined.__module__ == "__main__" or module is None or "<locals>" in defined.__qualname__


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from _names(inner)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
