"""Whether a file that was read to its end still holds what it held then: a mark of 24 bits beside its size tells.

Half a mark is of the file's time of change, half of its first and last 64 kB. When the time is another one, as that of
a copied or touched file is, the file is looked into: only other bytes are a change. One change in about 2,000 meets the
same half of a mark and goes unnoticed. Files of which nothing is known but the size have no mark.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from barrier_runtime.connectors.files.source.listing import FoundFile, fingerprint, open_file
from barrier_runtime.connectors.name_set import UNMARKED
from barrier_runtime.state.errors import InvalidJob, Unavailable

COMPARED_AT_START = 1_000  # files that are looked into, of those with another time; the others at the next start
_AT_ONCE = 16
_HALF_BITS = 12
_HALVES = 4_093  # values of half a mark, from 1; a prime


def mark_of(modified_ns: int, ends: str) -> int:
    """`ends`: `fingerprint` of the whole file."""
    return _half(modified_ns) << _HALF_BITS | _half(int(ends, 16))


def may_have_changed(mark: int, file: FoundFile) -> bool:
    return mark != UNMARKED and mark >> _HALF_BITS != _half(file.modified_ns)


def renewed_mark(mark: int, file: FoundFile, where: str) -> int:
    """Of a file that may have changed: the mark with its time, or the old one when it cannot be looked into now. Raises
    `InvalidJob` when it holds something else."""
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
    """`renewed_mark` of each of them, several at once."""
    if not known:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(known)), thread_name_prefix="compare") as pool:
        return list(pool.map(lambda each: renewed_mark(each[1], each[0], where), known))


def content_mark(file: FoundFile, where: str) -> int | None:
    """The mark of what it holds now; None when that cannot be told: it is gone, or is just being written. That is no
    error, for nobody needs a file that was read to its end."""
    try:
        with closing(open_file(file, where)) as opened:
            return mark_of(file.modified_ns, fingerprint(opened, file.size, where))
    except (InvalidJob, Unavailable):
        return None


def _half(value: int) -> int:
    return 1 + value % _HALVES


def _content(mark: int) -> int:
    return mark & ((1 << _HALF_BITS) - 1)
