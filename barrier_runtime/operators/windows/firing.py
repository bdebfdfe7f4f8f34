"""Work that a watermark brings, in slices: what is due is ordered part by part, so that barriers come in between.

A million windows may be over at one watermark. To order them all takes a second before the first one is out. Here some
of them are ordered first, as a sample; those *splitters* divide all others into *parts*, a chunk at a time, and a part
is ordered when its turn comes. One after the other the parts are what one sort of everything gives.

    phase       a step                                    then
    few         all in order                              over
    parting     a chunk goes to its parts                 parting; with the last chunk: parts
    parts       the next part, in order                   parts; with the last one: over
Nothing of this is in a snapshot: what is left is what is still in state, and is ordered anew after a restore.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

FEW = 16_384  # row ids that are ordered and processed at once
FEW_TUPLES = 4_096  # the same where keys are not all ints, which take several times as long
PART = 2_048  # row ids of a part, about
_SAMPLED = 8  # of a part
_CHUNK = 4_096


def in_order(row_ids: Ints, order: Callable[[Ints], Ints], few: int, part: int) -> Iterator[Ints | None]:
    """Parts of `row_ids` (each once) which, one behind the other, are in order; None after a step that gave none.
    `order` puts some of them in order; of two it always says the same. So many as `few` are one part; else parts have
    about `part` of them."""
    if len(row_ids) <= few:
        if len(row_ids):
            yield order(row_ids)
        return
    count = -(-len(row_ids) // part)
    sample = order(row_ids[:: max(1, len(row_ids) // (count * _SAMPLED))])
    splitters = sample[min(_SAMPLED // 2, len(sample) - 1) :: _SAMPLED]
    is_splitter = np.zeros(int(row_ids.max()) + 1, np.bool_)
    is_splitter[splitters] = True
    yield None
    parts = [[splitter] for splitter in np.split(splitters, len(splitters))]  # each is the last one of its part,
    parts.append([])  # and behind them
    at_once = max(_CHUNK, 2 * len(splitters))
    for first in range(0, len(row_ids), at_once):
        chunk = row_ids[first : first + at_once]
        ordered = order(np.concatenate([splitters, chunk[~is_splitter[chunk]]]))
        at = np.flatnonzero(is_splitter[ordered])
        for number, its in enumerate(np.split(ordered, at)):
            its = its[1:] if number else its
            if len(its):
                parts[number].append(its)
        yield None
    for number, its_chunks in enumerate(parts):
        parts[number] = []
        if its_chunks:
            yield order(np.concatenate(its_chunks))
