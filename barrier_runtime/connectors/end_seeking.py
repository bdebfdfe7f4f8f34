"""Contract of sources that can skip rows."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from barrier_runtime.connectors.source import Source


@runtime_checkable
class EndSeekingSource(Source, Protocol):
    """Source that can skip to the present end of its splits, which never finish, for `mode="at_most_once"`."""

    def not_to_end(self) -> str:
        """Explains why these settings leave no end to seek to, or ""."""
        ...

    def to_end(self, positions: Mapping[str, bytes]) -> Mapping[str, tuple[bytes, int]]:
        """Returns the position of the present end of each split, and the number of rows up to there.

        `positions`: by split id. Called in the slot, off the loop; may block, and raise `Unavailable`.
        """
        ...
