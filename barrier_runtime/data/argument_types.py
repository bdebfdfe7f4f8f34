"""Checks the types of arguments of public constructors and methods against their annotations.

Types are compared coarsely: a text, a number, a list. A class's own checks run first.
"""

import datetime
import difflib
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Real
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.texts import shortened

_T = TypeVar("_T", bound=type)
_F = TypeVar("_F", bound=Callable[..., Any])
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str) or hasattr(value, "__fspath__")),
    int: ("a whole number", lambda value: isinstance(value, Real) and float(value).is_integer()),  # 1e6 is accepted
    float: ("a number", lambda value: isinstance(value, Real)),
    bool: ("True or False", lambda value: isinstance(value, bool) or type(value).__module__ == "numpy"),
    types.NoneType: ("None", lambda value: value is None),
    Callable: ("a function", callable),
    Sequence: ("a list", lambda value: isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)),
    Mapping: ("a mapping", lambda value: isinstance(value, Mapping)),
}
_KINDS[tuple] = _KINDS[Iterable] = _KINDS[Sequence]
_SHOWN = (int, float, list, tuple, dict)  # not bytes, which may hold a URL with a password
_LONGEST = 60


class WrongCall(InvalidJob, TypeError):
    """A method or constructor was called with arguments that do not fit."""


def meant_keyword(wrong_call: TypeError, signature: inspect.Signature) -> str:
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(wrong_call))
    near = difflib.get_close_matches(unexpected[1], signature.parameters, 1) if unexpected else ()
    return f" (did you mean {near[0]!r}?)" if near else ""


def shown_parameters(signature: inspect.Signature) -> str:
    _, *takes = signature.parameters.values()
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in takes]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def kinds_checked(made: _T) -> _T:
    """Decorates a class, above `@dataclass`, which writes the constructor."""
    init = made.__init__  # type: ignore[misc]
    signature = inspect.signature(init)
    hints: dict[str, Any] = {}

    @wraps(init)
    def checked(self: Any, *positional: Any, **named: Any) -> None:
        try:
            init(self, *positional, **named)
        except BarrierRuntimeError:
            raise
        except Exception as error:
            check(self, positional, named, error)
            raise
        check(self, positional, named, None)

    def check(self: Any, positional: tuple[Any, ...], named: dict[str, Any], error: Exception | None) -> None:
        try:
            given = signature.bind(self, *positional, **named).arguments
        except TypeError as wrong_call:
            told = f"{type(self).__name__}: {wrong_call}{meant_keyword(wrong_call, signature)}"
            told = f"{told}: it takes {shown_parameters(signature)}"
            raise WrongCall(told) from None
        hints.update(hints or get_type_hints(init))
        wrong = wrong_argument(given, hints)
        if wrong:
            raise InvalidJob(f"{type(self).__name__}: {wrong}") from error

    made.__init__ = checked  # type: ignore[misc]
    return made


def arguments_checked(function: _F) -> _F:
    wrong = wrong_arguments_of(function)
    takes = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in takes.parameters.values()]
    signature = takes.replace(parameters=plain, return_annotation=inspect.Signature.empty)

    @wraps(function)
    def checked(*positional: Any, **named: Any) -> Any:
        told = wrong(positional, named)
        if told:
            raise InvalidJob(f"{function.__qualname__}: {told}")
        try:
            signature.bind(*positional, **named)
        except TypeError as wrong_call:
            raise WrongCall(f"{function.__qualname__}: {wrong_call}: it takes {signature}") from None
        return function(*positional, **named)

    return checked  # type: ignore[return-value]


def wrong_arguments_of(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], str]:
    hints = {name: hint for name, hint in function.__annotations__.items() if not isinstance(hint, str)}
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return lambda positional, named: wrong_argument({**dict(zip(names, positional, strict=False)), **named}, hints)


def wrong_argument(given: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """Describes the first argument that contradicts the annotation in `hints`, or ""."""
    for name, value in given.items():
        wanted = wrong_kind(value, hints.get(name, Any))
        if wanted:
            return f"{name}={_shown(value)}: give {wanted}"
    return ""


def wrong_kind(value: Any, hint: Any) -> str:
    """Names the types to give instead of `value`; "" if `value` matches or `_KINDS` lacks `hint`."""
    origin = get_origin(hint)
    several = get_args(hint) if origin in (Union, types.UnionType) else (hint,)
    kinds = [None if datetime.timedelta in _parts(each) else _KINDS.get(get_origin(each) or each) for each in several]
    if any(
        kind is None or (kind[1](value) and _holds_texts(value, each))
        for kind, each in zip(kinds, several, strict=True)
    ):
        return ""
    return " or ".join(
        kind[0] + (" of texts" if _of_texts(each) else "")
        for kind, each in zip(kinds, several, strict=True)
        if kind is not None
    )


def _parts(hint: Any) -> list[Any]:
    return [part for each in get_args(hint) for part in (get_args(each) or (each,))]


def _of_texts(hint: Any) -> bool:
    return str in get_args(hint) and get_args(hint)[-1] in (str, ...)


def _holds_texts(value: Any, hint: Any) -> bool:
    """Iterators are not consumed."""
    if not _of_texts(hint):
        return True
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return all(isinstance(each, str) for each in inside)


def _shown(value: Any) -> str:
    text = repr(value) if value is None or isinstance(value, _SHOWN) else f"<{type(value).__name__}>"
    return shortened(text, _LONGEST)
