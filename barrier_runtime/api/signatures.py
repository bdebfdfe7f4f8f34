"""Signatures with every option, for what looks at them while a program runs: notebooks, `help()`, documentation tools.

Type checkers and their editors read the keywords from `RunOptions` and `LocalRunOptions` instead.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Literal, TypeVar

from barrier_runtime.coordinator.option_table import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])


def takes_options(where: Literal["everywhere", "spark"]) -> Callable[[F], F]:
    """Decorator of a function that ends in `**options`."""

    def described(function: F) -> F:
        plain = signature(function)
        own = [each for each in plain.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        keywords = [
            Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
            for option in OPTIONS.values()
            if option.where in ("everywhere", where)
        ]
        function.__signature__ = plain.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return described
