"""Windows by count: every n rows of a key, a result of these n rows.

State is an entry per key; with a slide, per key and shift (see `Count`). The entry of shift -n starts as if n * slide
rows had come before.
"""

import numpy as np

from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.firing import FIRINGS
from barrier_runtime.operators.windows.rules.early import EveryRows
from barrier_runtime.operators.windows.rules.on_close import Ints, RuledWindows


class WhenFull(EveryRows):
    def __init__(self, windows: RuledWindows, rows: int, slide: int) -> None:
        super().__init__(windows, rows, accumulate=False)
        self._slide = slide

    def since(self, row_ids: Ints) -> Ints:
        since = super().since(row_ids)
        if self._slide == self._rows:
            return since
        phases = -np.asarray(self.windows.fields_of(row_ids)[-1], np.int64)
        begins = self.windows.table.columns[FIRINGS][row_ids] == 0
        with_those_before: Ints = since + begins * phases * self._slide
        return with_those_before

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        """Drops incomplete windows at the end of the input."""
        self.windows.remove(row_ids)
