"""Texts of recent batches are searched by Arrow; only new texts are looked up as keys."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from barrier_runtime.state.columns.column_rows import RecentTexts
from barrier_runtime.state.keys.row_index import Key, RowIds

TEXTS = 10_000


class Table:
    def __init__(self) -> None:
        self.row_ids: dict[Key, int] = {}
        self.looked_up = 0

    def place(self, keys: Sequence[Key]) -> RowIds:
        self.looked_up += len(keys)
        return np.array([self.row_ids.setdefault(key, len(self.row_ids)) for key in keys], np.int64)


def test_texts_stay_known_when_batches_grow() -> None:
    """The first batches of a source are small; with a few of all texts, a search in more of them would cost more."""
    table, recent, draw = Table(), RecentTexts(), np.random.default_rng(7)
    sizes = [100, 400, 1_600, 6_400, *[20_000] * 16]
    for size in sizes:
        texts = [f"customer-{number:06}" for number in draw.integers(0, TEXTS, size).tolist()]
        found = recent.row_ids(pa.array(texts), table.place)
        assert found.tolist() == [table.row_ids[(text,)] for text in texts]
    assert table.looked_up < 4 * TEXTS
