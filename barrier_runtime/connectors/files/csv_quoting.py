"""Row boundaries of CSV text whose quoted values may contain line breaks. Pure.

A field is quoted if the first byte is a quote; two quotes inside stand for a quote.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LF, _CR, _QUOTE = b'\n\r"'


@dataclass(frozen=True)
class Quoted:
    """Quoted parts, from the opening quote (included) to the closing quote (excluded)."""

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    open_at: int | None  # of the last opening quote if unclosed

    def covers(self, at: int) -> int | None:
        number = bisect_right(self.begins, at) - 1
        return int(self.begins[number]) if number >= 0 and at < self.ends[number] else None


def after_quotes(data: bytes, delimiter: str) -> int | None:
    """Beginning of the first quoted value with text after the closing quote, or None."""
    parts = quoted(data, delimiter)
    text = np.frombuffer(data + b"\n", np.uint8)
    after = text[np.minimum(parts.ends + 1, len(data))]
    is_end = (after == ord(delimiter)) | (after == _LF) | (after == _CR) | (after == _QUOTE)
    return None if is_end.all() else int(parts.begins[np.argmin(is_end)])


def quoted(data: bytes, delimiter: str) -> Quoted:
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    opening = quotes[::2]
    before = text[opening - 1]  # index -1 for an opening at 0: see the next line
    at_field = (before == ord(delimiter)) | (before == _LF) | (before == _CR) | (opening == 0)
    doubled = np.zeros(len(opening), bool)
    doubled[1:] = opening[1:] == quotes[1 : 2 * len(opening) - 1 : 2] + 1
    if not (at_field | doubled).all():
        return _one_by_one(data, delimiter)
    closing = quotes[1::2]
    open_at = None
    if len(closing) < len(opening):
        closing = np.append(closing, len(data))
        open_at = int(opening[np.flatnonzero(~doubled)[-1]])
    return Quoted(opening, closing, open_at)


def _one_by_one(data: bytes, delimiter: str) -> Quoted:
    opening = re.compile(rb"(?:\A|[" + re.escape(delimiter.encode()) + rb'\r\n])"')
    begins: list[int] = []
    ends: list[int] = []
    at = 0
    while (found := opening.search(data, at)) is not None:
        begins.append(found.end() - 1)
        at = found.end()
        while (at := data.find(b'"', at)) >= 0 and data[at + 1 : at + 2] == b'"':
            at += 2
        ends.append(len(data) if at < 0 else at)
        if at < 0:
            return Quoted(np.array(begins), np.array(ends), begins[-1])
    return Quoted(np.array(begins, np.int64), np.array(ends, np.int64), None)


def end_of_rows(data: bytes, delimiter: str) -> int:
    parts = quoted(data, delimiter)
    end = len(data)
    while (end := data.rfind(b"\n", 0, end)) >= 0:
        begin = parts.covers(end)
        if begin is None:
            return end + 1
        end = begin
    return 0


def end_of_first_row(data: bytes, delimiter: str) -> int:
    return next(iter(_row_ends(data, delimiter)))


def row_begins(data: bytes, delimiter: str, *, blank_rows: bool) -> list[int]:
    begins, begin = [], 0
    for end in _row_ends(data, delimiter):
        if blank_rows or data[begin:end].strip(b"\r\n"):
            begins.append(begin)
        begin = end
    return begins


def _row_ends(data: bytes, delimiter: str) -> list[int]:
    parts = quoted(data, delimiter)
    ends = [found.end() for found in re.finditer(rb"\r\n?|\n", data) if parts.covers(found.start()) is None]
    return ends if ends and ends[-1] == len(data) else [*ends, len(data)]


def count_of_lines(data: bytes) -> int:
    text = np.frombuffer(data, np.uint8)
    count = int(np.count_nonzero(text == _LF))
    if b"\r" in data:
        returns = text == _CR
        count += int(np.count_nonzero(returns) - np.count_nonzero(returns[:-1] & (text[1:] == _LF)))
    return count if not len(data) or text[-1] in (_LF, _CR) else count + 1
