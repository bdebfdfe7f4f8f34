"""Errors at the edge of the API: what a user's program sees of them.

The message says what is wrong and what to do; the dozen frames between the user's call and the line that noticed it say
nothing, and would stand before it. So they are cut off here (the logger `barrier_runtime` has them at level DEBUG),
except where somebody must look into our code: broken laws and broken files. `__cause__` is the user's own exception, if
there is one, with its traceback from the user's first frame on, for debuggers and collectors of errors.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from barrier_runtime.connectors.declared_kinds import wrong_arguments_of
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, ProtocolViolation, is_internal

log = logging.getLogger("barrier_runtime")

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


class WrongCall(InvalidJob, TypeError):
    """A method was called with other arguments than it has."""


def plain_errors(cls: C) -> C:
    """Class decorator: errors leave its public methods without our frames; wrong kinds of arguments are refused."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(cls, name, plainly(method))
    return cls


def plainly(method: F) -> F:
    """The method, as `plain_errors` has it."""
    wrong_argument = wrong_arguments_of(method)

    @functools.wraps(method)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            told = wrong_argument(arguments, keywords)
            if told:
                hint = f": {_name_first(method)}" if told.startswith("name=") else ""
                raise WrongCall(f"{_called(method, arguments)}: {told}{hint}")
            return method(*arguments, **keywords)
        except (Corrupt, ProtocolViolation):
            raise
        except BarrierRuntimeError as error:
            log.debug("%s raised %s", method.__qualname__, type(error).__name__, exc_info=True)
            raise error.with_traceback(None) from (None if is_internal(error) else error.__cause__)
        except KeyboardInterrupt as interrupted:
            if not interrupted.args:  # it came where nothing ran
                raise
            raise interrupted.with_traceback(None) from None
        except TypeError:
            wrong = _wrong_call(method, arguments, keywords)
            if wrong is None:
                raise
            raise wrong from None

    return called  # type: ignore[return-value]


def _wrong_call(method: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> WrongCall | None:
    """None: the arguments fit, so it was something inside that raised."""
    signature = inspect.signature(method)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        _, *takes = signature.parameters.values()
        named = bool(takes) and takes[0].name == "name" and takes[0].default is inspect.Parameter.empty
        nameless = named and not isinstance(keywords.get("name", arguments[1] if len(arguments) > 1 else None), str)
        shown = signature.replace(
            parameters=[each.replace(annotation=inspect.Parameter.empty) for each in takes],
            return_annotation=inspect.Signature.empty,
        )
        remedy = _name_first(method) if nameless else f"it takes {shown}"
        return WrongCall(f"{_called(method, arguments)}: {error}: {remedy}")
    return None


def _name_first(method: Callable[..., Any]) -> str:
    return f"the first argument is the step's name, a string, as in {method.__name__}('some-name', …)"


def _called(method: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    owner, _, _ = method.__qualname__.rpartition(".")
    if arguments and not isinstance(arguments[0], type):  # the method may be one that its class inherits
        owner = type(arguments[0]).__name__
    return f"{owner}.{method.__name__}"
