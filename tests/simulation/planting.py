"""Source changes planted into the running process: mutants of `tests/mutants` under the simulation.

The changed source is compiled, and every function whose code differs gets the new code. No module is imported again, so
classes keep their identity.
"""

import contextlib
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def planted(file: str, old: str, new: str) -> Iterator[None]:
    """Replaces `old` by `new` in the functions of `file` (relative to the repository); `old` occurs there once."""
    source = (ROOT / file).read_text()
    assert source.count(old) == 1, f"{file} has {source.count(old)} times {old!r}"
    name = file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name if name.startswith("barrier_runtime.") else f"barrier_runtime.{name}")
    before, after = _codes(source, file), _codes(source.replace(old, new), file)
    changed = [name for name, code in after.items() if name in before and _differs(before[name], code)]
    assert changed, f"nothing that runs changed in {file}"
    functions = [(_function(module, name), after[name]) for name in changed]
    originals = [function.__code__ for function, _ in functions]
    try:
        for function, code in functions:
            function.__code__ = code
        yield
    finally:
        for (function, _), code in zip(functions, originals, strict=True):
            function.__code__ = code


def _codes(source: str, file: str) -> dict[str, types.CodeType]:
    """Returns the code of functions and methods by qualified name; nested functions belong to the outer function."""
    found: dict[str, types.CodeType] = {}

    def walk(code: types.CodeType) -> None:
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                if const.co_flags & 0x2:  # CO_NEWLOCALS: set for functions, not for class bodies
                    found[const.co_qualname] = const
                else:
                    walk(const)

    walk(compile(source, file, "exec", dont_inherit=True))
    return found


def _differs(one: types.CodeType, other: types.CodeType) -> bool:
    """Returns whether two codes differ, apart from line numbers."""
    if one.co_code != other.co_code or one.co_names != other.co_names or len(one.co_consts) != len(other.co_consts):
        return True
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(a, types.CodeType) and isinstance(b, types.CodeType):
            if _differs(a, b):
                return True
        elif a != b or type(a) is not type(b):
            return True
    return False


def _function(module: types.ModuleType, name: str) -> types.FunctionType:
    owner: object = module
    for part in name.split("."):
        owner = vars(owner)[part]
    if isinstance(owner, property):
        owner = owner.fget
    if isinstance(owner, staticmethod | classmethod):
        owner = owner.__func__
    while hasattr(owner, "__wrapped__"):  # set by `contextmanager` and `functools`
        owner = owner.__wrapped__
    assert isinstance(owner, types.FunctionType), f"{name} is {owner!r}"
    return owner
