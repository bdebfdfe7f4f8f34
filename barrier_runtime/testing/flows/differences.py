"""How the rows of one sink differ from those expected: as multisets, told in the order of the rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHOWN = 400  # characters of a row


@dataclass(frozen=True)
class Difference:
    sink: str
    missing: tuple[Mapping[str, Any], ...]  # as often as they are
    unexpected: tuple[Mapping[str, Any], ...]

    def lines(self) -> list[str]:
        """For people; the first rows alone."""
        told = []
        if self.missing:
            told.append(f"missing rows: {len(self.missing)}, the first: {_shown(self.missing[0])}")
        if self.unexpected:
            told.append(f"rows too many: {len(self.unexpected)}, the first: {_shown(self.unexpected[0])}")
        return told


def difference(
    sink: str, expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> Difference | None:
    """None when there is none. Values are compared with their types; a NaN equals a NaN."""
    missing = _beyond(expected, found)
    unexpected = _beyond(found, expected)
    return Difference(sink, missing, unexpected) if missing or unexpected else None


def _beyond(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Rows that `others` lack, or have less often, in their order."""
    left = Counter(map(_key, others))
    beyond = []
    for row in rows:
        key = _key(row)
        if left[key]:
            left[key] -= 1
        else:
            beyond.append(row)
    return tuple(beyond)


def _key(row: Mapping[str, Any]) -> str:
    """Of nested dicts the order plays no part; of lists it does."""
    return repr(_plain(row))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((name, _plain(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _shown(row: Mapping[str, Any]) -> str:
    text = repr(dict(row))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
