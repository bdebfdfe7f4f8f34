"""Lists local files by a path or pattern, and counts files and folders that are passed over.

Links to folders are followed if the path, or a segment of a pattern, names them. They are passed over below a folder
that is read whole, and for `**`, because they may lead to known files or in a circle.
"""

import os
from collections.abc import Iterable, Iterator

from barrier_runtime.connectors.files.paths.patterns import (
    PathPattern,
    has_magic,
    is_hidden,
    is_hidden_file,
)
from barrier_runtime.state.errors import InvalidJob, Unavailable

HIDDEN, OTHER_ENDINGS, LINKS = "hidden names", "other endings", "links to folders"


class PassedOver:
    """Counts of names that were found and not read, by kind, each with an example."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, kind: str, path: str) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._examples.setdefault(kind, path)

    @property
    def unexpected(self) -> bool:
        """Returns True for other kinds than hidden names, which most folders have."""
        return bool(self._counts.keys() - {HIDDEN})

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __str__(self) -> str:
        """Text for messages; empty if nothing was passed over."""
        told = [f"{kind}: {count} (such as {self._examples[kind]})" for kind, count in self._counts.items()]
        return f" (passed over: {', '.join(told)})" if told else ""


def takes(name: str, pattern: PathPattern | None, suffixes: tuple[str, ...], passed: PassedOver) -> bool:
    """True if the file is read; counts the file otherwise.

    `name`: path below the listed folder, or below the base of `pattern`.
    """
    below = name
    if pattern is not None:
        parts = name.split("/")
        matched = pattern.matched(parts)
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
    """Returns ids and paths of the files of an absolute path, and whether a folder is read whole.

    Raises `Unavailable` if the path does not exist or a folder cannot be listed.
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
            # `**` matches no folder: earlier releases gave such files no id
            yield f"./{name}" if pattern.deep and "/" not in name else name, file


def _below(
    folder: str, where: str, passed: PassedOver, pattern: PathPattern | None = None, above: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yields all files below a folder, except files that `pattern`, whose base is above, cannot name."""
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
    except (FileNotFoundError, NotADirectoryError):  # removed since the listing
        return []
    except PermissionError as error:
        raise InvalidJob(f"{where}: the folder {folder} may not be listed ({error}): grant access to it") from error
    except OSError as error:
        raise Unavailable(f"{where}: the folder {folder} cannot be listed now: {error}") from error
