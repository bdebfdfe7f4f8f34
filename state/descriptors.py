"""Limit of open files of this process."""

import contextlib
import errno
import resource

from barrier_runtime.state.outside_errors import text_of

_TEXT = "too many open files"  # of libraries whose errors have no number


def raise_limit() -> None:
    """Raises the limit in processes of this project, not in the user's program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower bound than the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def remedy_if_exhausted(error: BaseException | None) -> str:
    """Limit and remedy if `error`, or a cause, is an exhausted number of files; else ""."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ENFILE:
            return "this host has no more open files: raise fs.file-max there"
        if number == errno.EMFILE or (number is None and _TEXT in text_of(error).lower()):
            return _remedy()
        error = error.__cause__ or error.__context__
    return ""


def _remedy() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process may open {soft:,} files and connections (hard limit {hard:,}): raise the hard limit where the "
        "process starts (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of the container), or use a smaller "
        "parallelism"
    )
