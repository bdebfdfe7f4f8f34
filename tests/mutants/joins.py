"""Mutants of the joins of two streams: bounds, expiry of rows, and state kept over a restore; of watermarks."""

from tests.mutants.mutant import Mutant

_INTERVAL = "barrier_runtime/operators/joins/interval.py"
_AS_OF = "barrier_runtime/operators/joins/as_of.py"
_TABLE = "barrier_runtime/operators/joins/as_of.py"
_TABLE_TESTS = "tests/barrier_runtime/operators/joins/test_table_join.py"
_INTERVAL_TESTS = "tests/barrier_runtime/operators/joins/test_interval_join.py"
_AS_OF_TESTS = "tests/barrier_runtime/operators/joins/test_asof_join.py"

MUTANTS = (
    Mutant(
        "interval-leaves-out-its-end",
        "both bounds of an interval join are included",
        _INTERVAL,
        "lowest, highest = run.times + self._lower, run.times + self._upper\n",
        "lowest, highest = run.times + self._lower, run.times + self._upper - 1\n",
        (f"{_INTERVAL_TESTS}::test_both_bounds_are_included",),
    ),
    Mutant(
        "interval-of-the-right-side-is-one-longer",
        "a right row looks for left rows within the very bounds",
        _INTERVAL,
        "lowest, highest = run.times - self._upper, run.times - self._lower\n",
        "lowest, highest = run.times - self._upper - 1, run.times - self._lower\n",
        (f"{_INTERVAL_TESTS}::test_both_bounds_are_included",),
    ),
    Mutant(
        "alone-before-the-last-match",
        "a row goes out without a partner only when the watermark has passed the last time of one",
        _INTERVAL,
        "max(WATERMARK_MIN, first - self._upper), max(",
        "max(WATERMARK_MIN, first - self._upper + 1), max(",
        (f"{_INTERVAL_TESTS}::test_unmatched_row_is_emitted_when_the_watermark_passes_the_last_partner_time",),
    ),
    Mutant(
        "cleaned-by-the-bound-of-the-other-side",
        "each side is held by its own bound",
        _INTERVAL,
        "max(WATERMARK_MIN, first + self._lower)\n",
        "max(WATERMARK_MIN, first - self._upper)\n",
        (f"{_INTERVAL_TESTS}::test_a_right_row_is_held_as_long_as_a_left_one_may_need_it",),
    ),
    Mutant(
        "pairs-are-late-behind-a-join",
        "successors hear of a watermark that is behind by as much as a row of a pair may be",
        "barrier_runtime/runtime/operator_chain.py",
        "                watermark_ms = max(WATERMARK_MIN, watermark_ms - operator.output_delay_ms)\n",
        "                pass\n",
        (
            "tests/barrier_runtime/operators/joins/test_join_jobs.py::test_no_result_of_a_join_is_late_for_a_window_behind_it",
        ),
    ),
    Mutant(
        "delay-of-the-upper-bound-alone",
        "rows of a pair may be behind by either bound",
        _INTERVAL,
        "max(datetime.timedelta(), between[1], -between[0])",
        "max(datetime.timedelta(), between[1])",
        ("tests/barrier_runtime/operators/joins/test_delay.py",),
    ),
    Mutant(
        "matched-is-forgotten-at-a-restore",
        "a row that has met a partner has met it after a restore, too",
        "barrier_runtime/operators/joins/base.py",
        "        run.matched = matched.copy()\n",
        "",
        (f"{_INTERVAL_TESTS}::test_what_has_matched_is_known_after_a_restore",),
    ),
    Mutant(
        "join-takes-the-watermark-for-on-time",
        "a row at the watermark is late",
        "barrier_runtime/operators/joins/base.py",
        "late = times_ms <= self._watermarks(",
        "late = times_ms < self._watermarks(",
        (f"{_INTERVAL_TESTS}::test_event_time_row_by_row_tells_late_rows_wherever_batches_end",),
    ),
    Mutant(
        "newest-version-is-superseded",
        "of the versions that the watermark has passed the newest of a key is kept",
        _AS_OF,
        "        kept = ends - (newest_run == number)  # the last position is the newest\n",
        "        kept = ends\n",
        (f"{_AS_OF_TESTS}::test_without_a_tolerance_the_newest_version_of_a_key_is_kept",),
    ),
    Mutant(
        "version-dropped-too-early",
        "a version is kept as long as a left row within the tolerance may come",
        _AS_OF,
        "before - self._tolerance))",
        "before - self._tolerance + 1))",
        (f"{_AS_OF_TESTS}::test_versions_that_nothing_can_need_are_removed_also_for_keys_without_new_rows",),
    ),
    Mutant(
        "as-of-is-always-exact",
        "with exact=False a version of the same time does not count",
        _AS_OF,
        "highest = times if self._exact else times - 1\n",
        "highest = times\n",
        (f"{_AS_OF_TESTS}::test_some_as_of_joins_equal_pandas",),
    ),
    Mutant(
        "deleted-key-has-its-last-row",
        "a key that was deleted has no row",
        _TABLE,
        "                gone = ~run.alive[at] | _removes(run.rows, at, self._deleted)\n",
        "                gone = ~run.alive[at]\n",
        (f"{_TABLE_TESTS}::test_a_delete_counts_from_its_very_time_until_the_key_is_back",),
    ),
    Mutant(
        "older-version-of-a-deleted-key-comes-back",
        "versions that are dead and not swept yet are none",
        _TABLE,
        "gone = ~run.alive[at] | _removes(",
        "gone = _removes(",
        (f"{_TABLE_TESTS}::test_a_deleted_key_stays_deleted_while_older_versions_are_not_swept_yet",),
    ),
    Mutant(
        "deletes-are-held-for-ever",
        "a delete that the watermark has passed is held no more",
        _TABLE,
        "                self._buffers[_RIGHT].kill(run, run.living(over))\n",
        "                pass\n",
        (f"{_TABLE_TESTS}::test_deletes_passed_by_event_time_are_dropped_also_for_keys_without_new_rows",),
    ),
    Mutant(
        "replaced-row-stays",
        "the row of a key is replaced by the one that comes",
        _TABLE,
        "                    table.kill(held, living)\n",
        "                    pass\n",
        (f"{_TABLE_TESTS}::test_one_row_per_key_is_held_however_often_it_changes",),
    ),
    Mutant(
        "first-change-of-a-batch-counts",
        "of several changes of a key in one batch the last one counts",
        _TABLE,
        "        last[:-1] = run.keys[1:] != run.keys[:-1]",
        "        last[1:] = run.keys[1:] != run.keys[:-1]",
        (f"{_TABLE_TESTS}::test_newest_row_is_emitted_at_once_in_row_order_with_its_event_time",),
    ),
    Mutant(
        "generated-watermark-goes-back",
        "the watermark of a generator never goes back from one batch to the next",
        "barrier_runtime/operators/watermark_generator.py",
        "            reached = np.maximum(np.maximum.accumulate(told), self._reached_ms)\n",
        "            reached = np.maximum.accumulate(told)\n",
        (
            "tests/barrier_runtime/operators/test_watermark_generator.py::test_the_watermark_never_goes_back_and_ends_only_with_the_input",
        ),
    ),
)
