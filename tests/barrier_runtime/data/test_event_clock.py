"""Event time of a split: batches get the time reached at each row exactly if a row of the batch is late."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.event_time import EventClock
from tests.drawn import examples

TIMES = st.lists(st.integers(0, 30), min_size=1, max_size=8)


@examples(200)
@given(st.lists(st.tuples(TIMES, st.booleans()), max_size=4), st.integers(0, 5))
def test_late_rows_are_those_below_the_greatest_time_before_them(
    batches: list[tuple[list[int], bool]], by: int
) -> None:
    clock, greatest = EventClock(by, "late"), None
    for times, in_order in batches:
        times = sorted(times) if in_order else times
        late = []
        advanced = greatest is None or max(times) > greatest
        for time in times:
            greatest = time if greatest is None else max(greatest, time)
            late.append(time <= greatest - by - 1)
        reached = clock.see(pa.array(times))
        assert clock.greatest_ms == greatest
        assert (reached is not None) == (advanced and any(late))
        assert reached is None or (np.array(times) <= reached).tolist() == late
