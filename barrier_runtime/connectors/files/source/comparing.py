"""Detects changes of completely read files by a mark of 24 bits beside the size.

See docs/design/splits-and-discovery.md. A change in about 2,000 keeps half of the mark and is missed. Files of which
only the size is known have no mark.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from barrier_runtime.connectors.files.source.listing import FoundFile, fingerprint, open_file
from barrier_runtime.connectors.name_set import UNMARKED
from barrier_runtime.state.errors import InvalidJob, Unavailable

COMPARED_AT_START = 1_000  # changed times that are checked per start; the others are checked at the next start
_AT_ONCE = 16
_HALF_BITS = 12
_HALVES = 4_093  # values of half a mark, from 1; a prime


def mark_of(modified_ns: int, ends: str) -> int:
    """Returns the mark of a file. `ends`: `fingerprint` of the whole file."""
    return _half(modified_ns) << _HALF_BITS | _half(int(ends, 16))


def may_have_changed(mark: int, file: FoundFile) -> bool:
    return mark != UNMARKED and mark >> _HALF_BITS != _half(file.modified_ns)


def renewed_mark(mark: int, file: FoundFile, where: str) -> int:
    """Returns the new mark of an unchanged file; the old mark if the file cannot be read now.

    Raises `InvalidJob` for changed content.
    """
    now = content_mark(file, where)
    if now is None:
        return mark
    if _content(now) != _content(mark):
        raise InvalidJob(
            f"{where}: the file {file.url} was rewritten after it was read to its end (as many bytes, but other ones), "
            "and its rows would not be read again: bring the old file back and put new rows into a file of another "
            "name, or start without state (restore='none')"
        )
    return now


def renewed_marks(known: Sequence[tuple[FoundFile, int]], where: str) -> list[int]:
    """Returns the `renewed_mark` of each file, several in parallel."""
    if not known:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(known)), thread_name_prefix="compare") as pool:
        return list(pool.map(lambda each: renewed_mark(each[1], each[0], where), known))


def content_mark(file: FoundFile, where: str) -> int | None:
    """Returns the mark of the current content; None if the file is gone or is being written.

    That is no error, because a completely read file is not needed.
    """
    try:
        with closing(open_file(file, where)) as opened:
            return mark_of(file.modified_ns, fingerprint(opened, file.size, where))
    except (InvalidJob, Unavailable):
        return None


def _half(value: int) -> int:
    return 1 + value % _HALVES


def _content(mark: int) -> int:
    return mark & ((1 << _HALF_BITS) - 1)
