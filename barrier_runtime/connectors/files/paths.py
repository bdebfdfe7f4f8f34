"""Patterns of paths, and the local files that a path or pattern names.

| in a segment | matches                                                              |
|--------------|----------------------------------------------------------------------|
| `*`          | any characters of the segment                                        |
| `?`          | a character                                                          |
| `[ab]`, `[!ab]`, `[a-z]` | any, or none, of these characters; `[*]` is a star        |
| `**`, alone  | any number of folders                                                |

Wildcards match no hidden name unless the segment begins with the same character.

Links to folders are followed only if the path, or a segment other than `**`, names them.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from barrier_runtime.state.errors import InvalidJob, Unavailable

_MAGIC = re.compile(r"[*?[]")
ANY_DEPTH = "**"


def has_magic(path: str) -> bool:
    return _MAGIC.search(path) is not None


def is_hidden(segment: str) -> bool:
    return segment.startswith(".") or (segment.startswith("_") and "=" not in segment)


def is_hidden_file(path: str) -> bool:
    *folders, name = path.split("/")
    return name.startswith((".", "_")) or any(map(is_hidden, folders))


@lru_cache(1_024)
def _compiled(segment: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(segment))


def segment_matches(pattern: str, name: str) -> bool:
    if not has_magic(pattern):
        return pattern == name
    return not (is_hidden(name) and pattern[0] != name[0]) and _compiled(pattern).match(name) is not None


@dataclass(frozen=True)
class PathPattern:
    base: str
    segments: tuple[str, ...]

    @staticmethod
    def of(pattern: str) -> "PathPattern":
        parts = pattern.split("/")
        first = next(number for number, part in enumerate(parts) if has_magic(part))
        return PathPattern("/".join(parts[:first]), tuple(part for part in parts[first:] if part))

    @cached_property
    def deep(self) -> bool:
        return ANY_DEPTH in self.segments

    def matched(self, path: Sequence[str]) -> int:
        """Number of leading segments that match: fewer than all for a file in a named folder."""
        for length in range(len(path), 0, -1):
            if _match(self.segments, tuple(path[:length])):
                return length
        return 0

    def hides(self, path: Sequence[str]) -> bool:
        """Whether the file does not match only because its name is hidden."""
        *folders, name = path
        return is_hidden(name) and _match(self.segments, (*folders, f"x{name[1:]}"))

    def leads_to(self, folder: Sequence[str]) -> bool:
        return bool(_reached(self.segments, folder) - {len(self.segments)})

    def names_folder(self, folder: Sequence[str]) -> bool:
        before = _through(self.segments, _reached(self.segments, folder[:-1]))
        kept = {number for number in before if number < len(self.segments) and self.segments[number] != ANY_DEPTH}
        return any(segment_matches(self.segments[number], folder[-1]) for number in kept)


def _match(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) in _through(pattern, _reached(pattern, path))


def _reached(pattern: tuple[str, ...], path: Sequence[str]) -> set[int]:
    reached = {0}
    for name in path:
        reached = _after(pattern, reached, name)
    return reached


def _through(pattern: tuple[str, ...], reached: set[int]) -> set[int]:
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


HIDDEN, OTHER_ENDINGS, LINKS = "hidden names", "other endings", "links to folders"
HIDDEN_FROM_PATTERN = "names with . or _ in front, which wildcards do not match"


class PassedOver:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, kind: str, path: str) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._examples.setdefault(kind, path)

    @property
    def unexpected(self) -> int:
        """Number of names except hidden names, which most folders have."""
        return sum(count for kind, count in self._counts.items() if kind != HIDDEN)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __str__(self) -> str:
        texts = [f"{kind}: {count} (such as {self._examples[kind]})" for kind, count in self._counts.items()]
        return f" (passed over: {', '.join(texts)})" if texts else ""


def takes(name: str, pattern: PathPattern | None, suffixes: tuple[str, ...], passed: PassedOver) -> bool:
    """Counts files that are not read. `name`: below the listed folder, or the base of `pattern`."""
    below = name
    if pattern is not None:
        parts = name.split("/")
        matched = pattern.matched(parts)
        if matched == 0 and parts[-1].endswith(suffixes) and pattern.hides(parts):
            passed.add(HIDDEN_FROM_PATTERN, name)
        if matched in (0, len(parts)):
            return matched > 0
        below = "/".join(parts[matched:])
    if is_hidden_file(below):
        passed.add(HIDDEN, name)
    elif not below.endswith(suffixes):
        passed.add(OTHER_ENDINGS, name)
    else:
        return True
    return False


def local_files(
    path: str, suffixes: tuple[str, ...], where: str, passed: PassedOver
) -> tuple[Iterable[tuple[str, str]], bool]:
    """Ids and paths of files, and whether a folder is read whole.
    Raises `Unavailable` if `path` is missing.
    """
    if os.path.isdir(path):
        root = os.path.join(path, "")
        names = (file[len(root) :] for file in _below(path, where, passed))
        return ((name, root + name) for name in names if takes(name, None, suffixes, passed)), True
    if os.path.isfile(path):
        return [(os.path.basename(path), path)], False
    if has_magic(path):
        return _matching(PathPattern.of(path), suffixes, where, passed), False
    raise Unavailable(f"{where}: there is no file or folder {path}: check the path")


def _matching(
    pattern: PathPattern, suffixes: tuple[str, ...], where: str, passed: PassedOver
) -> Iterator[tuple[str, str]]:
    base = pattern.base or "/"
    if not os.path.isdir(base):
        return
    prefix = os.path.join(base, "")
    for file in _below(base, where, passed, pattern):
        name = file[len(prefix) :]
        if takes(name, pattern, suffixes, passed):
            # ids of earlier releases, for files that `**` matches with no folder
            yield f"./{name}" if pattern.deep and "/" not in name else name, file


def _below(
    folder: str, where: str, passed: PassedOver, pattern: PathPattern | None = None, above: tuple[str, ...] = ()
) -> Iterator[str]:
    for entry in _entries(folder, where):
        path = (*above, entry.name)
        if not entry.is_dir():
            yield entry.path
            continue
        matched = 0 if pattern is None else pattern.matched(path)
        whole = pattern is None or 0 < matched < len(path)  # below a folder that is read whole
        if whole and is_hidden(entry.name):
            passed.add(HIDDEN, entry.path)
        elif pattern is not None and not matched and not pattern.leads_to(path):
            continue
        elif entry.is_symlink() and (pattern is None or whole or not pattern.names_folder(path)):
            passed.add(LINKS, entry.path)
        else:
            yield from _below(entry.path, where, passed, pattern, path)


def _entries(folder: str, where: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise InvalidJob(f"{where}: the folder {folder} may not be listed ({error}): grant access to it") from error
    except OSError as error:
        raise Unavailable(f"{where}: the folder {folder} cannot be listed now: {error}") from error
