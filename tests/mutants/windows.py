"""Mutants of windows: ends, retention, late rows, joined sessions."""

from tests.mutants.mutant import Mutant

_ASSIGNERS = "barrier_runtime/operators/windows/assigners.py"
_AGGREGATE = "barrier_runtime/operators/windows/aggregate.py"
_SLIDING = "barrier_runtime/operators/windows/sliding.py"
_SESSIONS = "barrier_runtime/operators/windows/sessions/aggregate.py"
_CLOCKS = "barrier_runtime/operators/windows/clocks.py"
_TESTS = "tests/barrier_runtime/operators/windows"
_LATENESS_TESTS = f"{_TESTS}/test_allowed_lateness.py"
_ONE_JOINS_TWO = f"{_TESTS}/test_sessions.py::test_one_row_joins_two_sessions_whose_accumulators_become_one"
_SLIDING_TESTS = f"{_TESTS}/test_sliding.py"
_SLICES_AS_WINDOWS = f"{_SLIDING_TESTS}::test_slices_give_the_windows_and_late_rows_that_entries_per_window_give"
_CLOCK_TESTS = f"{_TESTS}/test_processing_time.py"

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
        (f"{_LATENESS_TESTS}::test_state_is_kept_exactly_until_window_end_and_lateness_are_over",),
    ),
    Mutant(
        "cleaned-while-late-rows-count",
        "a window that has fired is kept as long as rows may still count in it",
        _AGGREGATE,
        "closed = self.kept.take(self._first_kept(watermark_ms))\n",
        "closed = self.kept.take(self.window.first_open_start(watermark_ms))\n",
        (f"{_LATENESS_TESTS}::test_three_late_rows_of_one_batch_are_three_updates",),
    ),
    Mutant(
        "late-for-one-window-is-late-for-all",
        "a row is late when all of its windows are gone",
        _AGGREGATE,
        "        late[of_row] = False\n",
        "        late[assigned[closed] if assigned is not None else of_row] = assigned is not None\n",
        (f"{_TESTS}/test_late_rows.py::test_row_late_for_some_of_its_windows_counts_in_the_others_and_is_not_late",),
    ),
    Mutant(
        "slice-removed-one-window-too-early",
        "a slice is kept until the last window that it belongs to is over",
        _SLIDING,
        "        before = self.window.first_open_start(int(self._fired_ms.min()))\n",
        "        before = self.window.first_open_start(int(self._fired_ms.min())) + self.window.slide_ms\n",
        (f"{_SLIDING_TESTS}::test_an_entry_is_a_slice_and_is_gone_once_its_last_window_is_over",),
    ),
    Mutant(
        "slice-counts-in-a-window-that-is-over",
        "a row counts in no window that was over when it came, wherever batches end",
        _SLIDING,
        "        cut = self._first_over(batch, slices)\n",
        "        cut = None\n",
        (f"{_SLIDING_TESTS}::test_row_behind_its_batchs_watermark_does_not_count_in_windows_over_by_then",),
    ),
    Mutant(
        "window-lacks-a-slice",
        "a window is all of its slices",
        _SLIDING,
        "in range(start, start + self.window.size_ms, self.window.slide_ms)",
        "in range(start + self.window.slide_ms, start + self.window.size_ms, self.window.slide_ms)",
        (f"{_SLIDING_TESTS}::test_a_row_of_a_slice_of_which_windows_have_gone_out_counts_in_the_others",),
    ),
    Mutant(
        "what-went-out-of-slices-is-not-restored",
        "a window that has gone out for a key group does not go out again, at any parallelism",
        _SLIDING,
        "                    np.maximum(part, floor.watermark_ms, out=part)\n",
        "                    np.maximum(part, WATERMARK_MIN, out=part)\n",
        (_SLICES_AS_WINDOWS,),
    ),
    Mutant(
        "part-of-a-window-goes-out-again",
        "what a window has told before a barrier it does not tell again behind it",
        _SLIDING,
        "            self._fired_ms[of_groups] = self.window.last_ms(start)\n            yield\n",
        "            yield\n        self._fired_ms[groups] = self.window.last_ms(start)\n",
        (f"{_TESTS}/test_firing_in_slices.py",),
    ),
    Mutant(
        "evicted-slice-counts-twice",
        "an entry that leaves memory while its window is added up counts once",
        _SLIDING,
        "                unseen = ~seen[numbers]\n",
        "                unseen = np.ones(len(numbers), np.bool_)\n",
        (_SLICES_AS_WINDOWS, f"{_TESTS}/test_windows_on_disk.py"),
    ),
    Mutant(
        "windows-of-an-older-release-are-taken-for-slices",
        "state that was stored as windows goes on as windows",
        _SLIDING,
        "in_slices = were_slices if restored else not operator.made_of_tables",
        "in_slices = True if restored else not operator.made_of_tables",
        (f"{_SLIDING_TESTS}::test_state_of_windows_goes_on_as_windows",),
    ),
    Mutant(
        "session-told-with-its-step",
        "a session is told at its end, not when all sessions that are due together have ended",
        "barrier_runtime/operators/windows/sessions/aggregate.py",
        "int(last_ms[row_ids].min()) + self._gap_ms)",
        "int(last_ms[row_ids].min()) + self._gap_ms + self._step_ms)",
        (
            "tests/barrier_runtime/operators/windows/test_processing_time.py::test_each_session_is_told_right_after_its_end_though_several_are_due_at_once",
        ),
    ),
    Mutant(
        "joined-session-loses-its-timer",
        "a session that has grown, or come of two, is looked at again when it may be over",
        "barrier_runtime/operators/windows/sessions/aggregate.py",
        "        for row_ids in going_on:  #",
        "        for row_ids in going_on[:0]:  #",
        (_ONE_JOINS_TWO,),
    ),
    Mutant(
        "joined-session-forgets-how-it-was-joined",
        "rows of a session come before the rows of one that is merged into it, also where that was joined before",
        "barrier_runtime/operators/windows/sessions/assignment.py",
        "np.maximum(level[into], level[goes]) + 1",
        "level[into] + 1",
        (f"{_TESTS}/test_sessions.py",),
    ),
    Mutant(
        "joined-session-loses-sums",
        "a session that came of two has the sums of both, where order is nothing, too",
        _SESSIONS,
        "            if len(merged):\n",
        "            if not len(merged):\n",
        (_ONE_JOINS_TWO,),
    ),
    Mutant(
        "joined-session-loses-rows",
        "a session that came of two has the rows of both",
        _SESSIONS,
        "            if pairs.any():\n",
        "            if not pairs.any():\n",
        (_ONE_JOINS_TWO,),
    ),
    Mutant(
        "restored-clock-begins-below-its-watermark",
        "the clock of restored windows goes on from where it was, also where the machine's was set back",
        _CLOCKS,
        "context.now_s, self._restored_ms() + 1)",
        "context.now_s)",
        (f"{_CLOCK_TESTS}::test_a_clock_that_was_set_back_while_the_job_was_down_makes_no_row_late",),
    ),
    Mutant(
        "restored-clock-begins-below-a-floor",
        "the clock of restored windows goes on from the key group that was ahead of all others",
        _CLOCKS,
        "            told += self._operator.floors.told_ms\n",
        "            told += ()\n",
        (f"{_CLOCK_TESTS}::test_a_clock_that_was_set_back_while_the_job_was_down_makes_no_row_late",),
    ),
    Mutant(
        "told-window-is-restored",
        "a window that was told by the wall clock is not told again after a restore",
        _AGGREGATE,
        "        self._rule.removed(row_ids)\n        self.table.remove(row_ids)\n",
        "        self._rule.removed(row_ids)\n",
        (f"{_CLOCK_TESTS}::test_what_was_over_while_the_job_was_down_is_told_at_once_and_once",),
    ),
    Mutant(
        "windows-by-the-wall-clock-wait-for-rows",
        "windows by the wall clock are told without any input",
        _CLOCKS,
        "        if self._is_over(now_ms):\n            operator.go_on(",
        "        if False:\n            operator.go_on(",
        (f"{_CLOCK_TESTS}::test_windows_are_told_when_the_clock_reaches_their_end_without_any_input",),
    ),
    Mutant(
        "windows-by-the-wall-clock-set-no-wake-up",
        "a window by the wall clock has its slot woken at its end",
        _CLOCKS,
        "            self._wake_ups.wake_at(next_ms + 1, now_ms)\n",
        "            pass\n",
        (f"{_CLOCK_TESTS}::test_windows_are_told_when_the_clock_reaches_their_end_without_any_input",),
    ),
    Mutant(
        "windows-by-the-wall-clock-follow-event-time",
        "a watermark from upstream does not end windows by the wall clock",
        _CLOCKS,
        "        return watermark_ms != WATERMARK_MAX or self._operator.go_on(WATERMARK_MAX,",
        "        return self._operator.go_on(watermark_ms,",
        (f"{_CLOCK_TESTS}::test_event_time_from_upstream_is_nothing_but_its_end",),
    ),
    Mutant(
        "windows-by-the-wall-clock-are-not-told-early",
        "windows by the wall clock give early results by that clock, without any input",
        _CLOCKS,
        "        return operator.entries.tell_early(emit)  # in turns in which no window is over\n",
        "        return False\n",
        (f"{_CLOCK_TESTS}::test_what_was_told_early_before_a_restore_is_told_again_only_with_more_rows",),
    ),
    Mutant(
        "slices-by-the-wall-clock-end-idleness",
        "an idle subtask is idle behind each slice of what it tells by the wall clock",
        "barrier_runtime/runtime/operator_chain.py",
        "            self._tell_idle()  # wall-clock windows",
        "            pass  # wall-clock windows",
        (f"{_CLOCK_TESTS}::test_windows_of_an_idle_subtask_are_told_and_leave_it_idle_also_in_slices",),
    ),
)
