"""Mutants of windows: when one is over, how long it is kept, which rows are late, what becomes of joined sessions."""

from tests.mutants.mutant import Mutant

_ASSIGNERS = "barrier_runtime/operators/windows/assigners.py"
_AGGREGATE = "barrier_runtime/operators/windows/aggregate.py"
_SESSIONS = "barrier_runtime/operators/windows/sessions.py"
_TESTS = "tests/barrier_runtime/operators/windows"
_LATENESS_TESTS = f"{_TESTS}/test_allowed_lateness.py"
_ONE_JOINS_TWO = f"{_TESTS}/test_sessions.py::test_one_row_joins_two_sessions_whose_accumulators_become_one"

MUTANTS = (
    Mutant(
        "window-is-over-a-millisecond-too-early",
        "a window is over when the watermark reaches its last millisecond",
        _ASSIGNERS,
        "        return watermark_ms - self.size_ms + 2  #",
        "        return watermark_ms - self.size_ms + 3  #",
        (f"{_TESTS}/test_windows.py::test_a_window_fires_exactly_when_the_watermark_reaches_its_last_millisecond",),
    ),
    Mutant(
        "lateness-is-one-shorter",
        "a window is kept until its end and the lateness are over",
        _AGGREGATE,
        "first_open_start(watermark_ms - self._lateness_ms)",
        "first_open_start(watermark_ms - self._lateness_ms + 1)",
        (
            f"{_LATENESS_TESTS}::test_state_is_kept_until_the_end_and_the_lateness_are_over_and_not_a_millisecond_longer",
        ),
    ),
    Mutant(
        "cleaned-while-late-rows-count",
        "a window that has fired is kept as long as rows may still count in it",
        _AGGREGATE,
        "closed = self._fired.take(self._first_kept(watermark_ms))\n",
        "closed = self._fired.take(self._window.first_open_start(watermark_ms))\n",
        (f"{_LATENESS_TESTS}::test_three_late_rows_of_one_batch_are_three_updates",),
    ),
    Mutant(
        "late-for-one-window-is-late-for-all",
        "a row is late when all of its windows are gone",
        _AGGREGATE,
        "        late[of_row] = False\n",
        "        late[assigned[closed] if assigned is not None else of_row] = assigned is not None\n",
        (
            f"{_TESTS}/test_late_rows.py::test_a_row_that_is_late_for_some_of_its_windows_counts_in_the_others_and_is_not_late",
        ),
    ),
    Mutant(
        "joined-session-loses-its-timer",
        "a session that has grown, or come of two, is looked at again when it may be over",
        "barrier_runtime/operators/windows/open_sessions.py",
        "        for row_ids in going_on:  #",
        "        for row_ids in going_on[:0]:  #",
        (_ONE_JOINS_TWO,),
    ),
    Mutant(
        "joined-session-loses-rows",
        "a session that came of two has the rows of both",
        _SESSIONS,
        "            if len(pairs):\n                columns",
        "            if not len(pairs):\n                columns",
        (_ONE_JOINS_TWO,),
    ),
)
