"""Mutants of event time row by row, and of the order at the end of the input."""

from tests.mutants.mutant import Mutant

_TIME = "tests/field/local/test_time.py"
_CUTS = "tests/barrier_runtime/operators/test_cuts.py"

MUTANTS = (
    Mutant(
        "end-of-time-goes-first",
        "wall-clock work that is due comes before the end of event time",
        "barrier_runtime/runtime/subtask.py",
        "            if said.ms != WATERMARK_MAX:",
        "            if True:",
        (f"{_TIME}::test_wall_clock_timers_due_at_the_end_come_before_the_last_watermark",),
    ),
    Mutant(
        "ids-are-forgotten-by-batch",
        "an id is forgotten at the row where event time has come far enough",
        "barrier_runtime/operators/deduplication/operator.py",
        "        watermarks = self._row_watermarks(batch)\n",
        "        watermarks = self._row_floors(rows)\n",
        (f"{_TIME}::test_an_id_every_two_hours_is_new_each_time_in_a_backlog",),
    ),
    Mutant(
        "functions-of-batches-mix-event-times",
        "a function of batches gets rows of one event time where a step behind follows it",
        "barrier_runtime/operators/functions/batch_functions.py",
        "            for moment in batch.moments():\n",
        "            for moment in (batch,):\n",
        (f"{_TIME}::test_sessions_behind_whole_batches_are_closed_in_between",),
    ),
    Mutant(
        "joins-follow-event-time-by-batch",
        "a join takes rows one event time at a time where a step behind follows it",
        "barrier_runtime/operators/joins/base.py",
        "        if not self.is_followed or batch.reached is None:\n",
        "        if True:\n",
        (f"{_CUTS}::test_readers_of_event_time_behind_some_steps",),
    ),
    Mutant(
        "changed-times-are-late-by-batch",
        "rows of times that a step has changed are late wherever batches end",
        "barrier_runtime/api/steps.py",
        '        return "late" if known else "rows"\n',
        '        return "late"\n',
        (f"{_TIME}::test_rows_that_a_function_moves_back_are_late_in_a_backlog_too",),
    ),
    Mutant(
        "own-watermarks-hide-those-of-the-input",
        "a step before `with_watermarks` follows the event time of its input, also where that made anew is ahead",
        "barrier_runtime/runtime/subtask.py",
        "        return within(batch, self._merger.others(channel), self.chain.heard)\n",
        "        return within(batch, self._merger.others(channel), self.chain.watermark)\n",
        (f"{_CUTS}::test_own_watermarks_that_are_ahead_take_no_event_time_from_steps_before",),
    ),
)
