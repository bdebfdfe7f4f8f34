"""A column's values as consecutive bytes, for cells.
Words of 8 bytes (little endian); text and bytes after their length (4 bytes)."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, codes_of
from barrier_runtime.operators.aggregation.state_columns import Ints, Values, from_words, to_words, word_dtypes
from barrier_runtime.state.columns.wide_columns import WIDE

_length = struct.Struct("<I")
_WORD_BYTES = 8


class EncodedValues:
    """`distinct`: equal values have equal bytes, so 0.0 replaces -0.0, one NaN all others."""

    def __init__(self, kind: pa.DataType, distinct: bool = False) -> None:
        self.kind = kind
        self._distinct = distinct
        self._dtypes = word_dtypes(kind)
        self._wide = self._dtypes == (WIDE,)
        self._bytes = 0 if self._wide else _WORD_BYTES * len(self._dtypes)

    @property
    def is_one_word(self) -> bool:
        return self._bytes == _WORD_BYTES

    def of(self, batch: BatchValues, column: str, rows: Values | None = None) -> list[bytes]:
        """Null has bytes without meaning."""
        words = batch.words(column)
        if rows is not None:
            words = tuple(word[rows] for word in words)
        if self._wide:
            return [_length.pack(len(cell)) + cell for cell in words[0]]
        width, data = self._bytes, np.stack([self._plain(word) for word in words], 1).tobytes()
        return [data[at : at + width] for at in range(0, len(data), width)]

    def coded(self, batch: BatchValues, column: str) -> tuple[Ints, Ints]:
        """Returns a number per row, -1 for null, rising by one at each new value, and the word of each number."""
        if pa.types.is_signed_integer(self.kind):  # the values are the words
            encoded = batch.encoded(column)
            return codes_of(encoded), to_words(encoded.dictionary)[0]
        (word,), valid = batch.words(column), batch.valid(column)
        words = pa.array(self._plain(word).view(np.int64), mask=None if valid is None else ~valid)
        encoded = words.dictionary_encode()
        return codes_of(encoded), encoded.dictionary.to_numpy()

    def split(self, data: bytes) -> list[bytes]:
        width = self._bytes
        if not self._wide:
            return [data[at : at + width] for at in range(0, len(data), width)]
        found, at = [], 0
        while at < len(data):
            end = at + _length.size + _length.unpack_from(data, at)[0]
            found.append(data[at:end])
            at = end
        return found

    def array(self, values: Sequence[bytes]) -> pa.Array:
        """Returns the column of values from `of`; an element may hold several values."""
        data = b"".join(values)
        if not self._wide:
            words = np.frombuffer(data, np.int64).reshape(-1, len(self._dtypes)).T
            return from_words(
                tuple(np.ascontiguousarray(word).view(self._dtypes[0]) for word in words), self.kind, None
            )
        cells = np.array([None, *(value[_length.size :] for value in self.split(data))], np.object_)[1:]
        return from_words((cells,), self.kind, None)

    def _plain(self, word: Any) -> Any:
        if self._distinct and word.dtype == np.float64:
            return np.where(np.isnan(word), np.nan, word + 0.0)
        return word
