"""Row ids of texts that recent batches had as keys, found by Arrow for a whole batch at once."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.keys.row_index import Key, RowIds

Place = Callable[[Sequence[Key]], RowIds]

_SEARCHES = 16  # after which the texts of a batch are counted again
_RESTS = 64  # batches without search, after too many texts
_GROWN = 2  # times the rows of the batch whose texts are known: its texts tell little of this batch
_MOST = 4  # times the texts of a batch: a search in more costs more than lookups
_MOST_BYTES = 4 << 20


class RecentTexts:
    """Arrow makes a table of the known texts in each search, so only texts of recent batches are known."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """The row ids are no longer valid."""
        self._texts: pa.Array | None = None
        self._row_ids: RowIds = np.empty(0, np.int64)
        self._searches = 0
        self._rests = 0
        self._most = 0
        self._rows = 0

    def row_ids(self, column: pa.Array, place: Place) -> RowIds:
        """Row id of each row. `place` returns those of keys, and may make them; nulls are equal."""
        if self._texts is None or not self._searches:
            return self._learnt(column, place)
        self._searches -= 1
        found = pc.index_in(column, value_set=self._texts)
        if not found.null_count:
            row_ids: RowIds = self._row_ids[found.to_numpy()]
            return row_ids
        is_new = found.is_null()
        new = column.filter(is_new).dictionary_encode(null_encoding="encode")
        more = new.dictionary
        if 4 * len(more) > 3 * len(column) or len(self._texts) + len(more) > self._most:
            grown = len(column) > _GROWN * self._rows
            self.clear()
            self._rests = 0 if grown else _RESTS
            return self._learnt(column, place)
        of_more, mask = place(_keys(more)), is_new.to_numpy(zero_copy_only=False)
        row_ids = np.empty(len(column), np.int64)
        row_ids[~mask] = self._row_ids[found.drop_null().to_numpy()]
        row_ids[mask] = of_more[new.indices.to_numpy()]
        self._row_ids = np.concatenate([self._row_ids, of_more])
        self._texts = pa.concat_arrays([self._texts, more])
        return row_ids

    def _learnt(self, column: pa.Array, place: Place) -> RowIds:
        encoded = column.dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary
        of_texts = place(_keys(texts))
        self._most, self._searches = _MOST * len(texts), _SEARCHES
        if self._rests:
            self._rests -= 1
        elif texts.nbytes > _MOST_BYTES:
            self.clear()
        elif self._texts is None or self._texts.nbytes > _MOST_BYTES or len(self._texts) > self._most:
            self._texts, self._row_ids, self._rows = texts, of_texts, len(column)
        row_ids: RowIds = of_texts[encoded.indices.to_numpy()]
        return row_ids


def _keys(texts: pa.Array) -> list[Key]:
    return [(text,) for text in texts.to_pylist()]
