"""Patterns of paths by segment, for local folders and keys of all stores. Pure.

| in a segment | matches                                                              |
|--------------|----------------------------------------------------------------------|
| `*`          | any characters of the segment                                        |
| `?`          | one character                                                        |
| `[ab]`, `[!ab]`, `[a-z]` | one of these characters, or none of them; `[*]` is a star |
| `**`, alone  | no folder, one, or several                                           |

Only a slash matches a slash. Wildcards match no hidden name, which begins with `.` or `_`, unless the segment begins
with the same character. A folder `_k=v` of a column is not hidden.
"""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

_MAGIC = re.compile(r"[*?[]")
ANY_DEPTH = "**"


def has_magic(path: str) -> bool:
    return _MAGIC.search(path) is not None


def is_hidden(segment: str) -> bool:
    """True for names that sinks and other writers give to incomplete files and to files without data."""
    return segment.startswith(".") or (segment.startswith("_") and "=" not in segment)


def is_hidden_file(path: str) -> bool:
    """True if the file or a folder in `path`, a path below the listed folder, is hidden."""
    *folders, name = path.split("/")
    return name.startswith((".", "_")) or any(map(is_hidden, folders))


@lru_cache(1_024)
def _compiled(segment: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(segment))


def segment_matches(pattern: str, name: str) -> bool:
    """True if `pattern`, a segment other than `**`, matches `name`."""
    if not has_magic(pattern):
        return pattern == name
    return not (is_hidden(name) and pattern[0] != name[0]) and _compiled(pattern).match(name) is not None


@dataclass(frozen=True)
class PathPattern:
    """Pattern of paths: the folder `base`, and `segments` from the first wildcard on."""

    base: str
    segments: tuple[str, ...]

    @staticmethod
    def of(pattern: str) -> "PathPattern":
        parts = pattern.split("/")
        first = next(number for number, part in enumerate(parts) if has_magic(part))
        return PathPattern("/".join(parts[:first]), tuple(part for part in parts[first:] if part))

    @cached_property
    def deep(self) -> bool:
        """Returns whether files of any depth may match."""
        return ANY_DEPTH in self.segments

    def matched(self, path: Sequence[str]) -> int:
        """Returns how many leading segments of a path below `base` the pattern matches.

        All segments for a named file, fewer for a file in a named folder, 0 for others.
        """
        for length in range(len(path), 0, -1):
            if _match(self.segments, tuple(path[:length])):
                return length
        return 0

    def leads_to(self, folder: Sequence[str]) -> bool:
        """True if a file below a folder may match."""
        return bool(_reached(self.segments, folder) - {len(self.segments)})

    def names_folder(self, folder: Sequence[str]) -> bool:
        """True if a segment other than `**` matches the folder's own name."""
        before = _through(self.segments, _reached(self.segments, folder[:-1]))
        kept = {number for number in before if number < len(self.segments) and self.segments[number] != ANY_DEPTH}
        return any(segment_matches(self.segments[number], folder[-1]) for number in kept)


def _match(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) in _through(pattern, _reached(pattern, path))


def _reached(pattern: tuple[str, ...], path: Sequence[str]) -> set[int]:
    """Returns the numbers of pattern segments up to which the path may match."""
    reached = {0}
    for name in path:
        reached = _after(pattern, reached, name)
    return reached


def _through(pattern: tuple[str, ...], reached: set[int]) -> set[int]:
    """Adds the segments after each `**`, which may match no folder."""
    found = set(reached)
    for number in range(len(pattern)):
        if number in found and pattern[number] == ANY_DEPTH:
            found.add(number + 1)
    return found


def _after(pattern: tuple[str, ...], reached: set[int], name: str) -> set[int]:
    found = set()
    for number in _through(pattern, reached):
        if number == len(pattern):
            continue
        if pattern[number] == ANY_DEPTH:
            if not is_hidden(name):
                found.add(number)
        elif segment_matches(pattern[number], name):
            found.add(number + 1)
    return found
