"""Contract of sources whose splits are read one after another."""

from typing import Any, Protocol, TypeGuard, runtime_checkable

from barrier_runtime.connectors.source import Source, Split


@runtime_checkable
class InTurn(Source, Protocol):
    """Source whose splits, if `in_turn`, subtask 0 reads one after another, as a single split."""

    @property
    def in_turn(self) -> bool: ...

    def turn(self, split: Split) -> tuple[Any, ...]:
        """Returns the place of `split` in the order. Different splits have different places."""
        ...


def is_in_turn(source: Source) -> TypeGuard[InTurn]:
    return isinstance(source, InTurn) and source.in_turn is True  # a user's attribute may mean something else
