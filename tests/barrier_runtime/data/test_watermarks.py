"""Watermark over several channels: the minimum of the active channels, never decreasing."""

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Idle, Watermark
from barrier_runtime.runtime.network.input_queues import WatermarkMerger


def test_the_slowest_channel_decides():
    merger = WatermarkMerger(2)
    assert merger.on_watermark(0, 10) is None
    assert merger.on_watermark(1, 5) == Watermark(5)
    assert merger.on_watermark(1, 20) == Watermark(10)


def test_it_never_goes_back():
    merger = WatermarkMerger(1)
    assert merger.on_watermark(0, 10) == Watermark(10)
    assert merger.on_watermark(0, 7) is None
    assert merger.current == 10


def test_an_idle_channel_holds_nothing_back_until_it_speaks_again():
    merger = WatermarkMerger(2)
    merger.on_watermark(0, 10)
    assert merger.on_idle(1) == Watermark(10)
    assert merger.on_watermark(0, 20) == Watermark(20)
    merger.on_activity(1)
    assert merger.on_watermark(0, 30) is None
    assert merger.on_watermark(1, 25) == Watermark(25)


def test_a_channel_without_rows_holds_nothing_back_from_the_beginning():
    merger = WatermarkMerger(3, empty=[1, 2])
    assert merger.others(0) == WATERMARK_MAX
    assert merger.on_watermark(0, 10) == Watermark(10)
    assert merger.on_end(1) is None
    assert merger.on_end(0) is None, "the third one has not ended"
    assert merger.on_end(2) == Watermark(WATERMARK_MAX)


def test_rows_held_for_the_end_are_not_passed_while_an_empty_channel_has_not_ended():
    """Two subtasks get the same elements in different orders: neither reports idleness, which would advance its
    successors to the watermark of the other subtask, past the rows that the other subtask holds.
    """
    ends_first, ends_last = WatermarkMerger(3, empty=[2]), WatermarkMerger(3, empty=[2])
    assert ends_first.on_end(1) is None
    assert ends_first.on_watermark(0, 10) == Watermark(10)
    assert ends_first.on_end(0) is None
    assert ends_last.on_watermark(0, 10) is None
    assert ends_last.on_end(0) is None
    assert ends_last.on_end(1) is None, "'idle' would leave what came before 10 behind the watermark of the other one"
    assert ends_first.on_end(2) == ends_last.on_end(2) == Watermark(WATERMARK_MAX)


def test_subtasks_none_of_whose_channels_ever_has_rows_are_idle():
    merger = WatermarkMerger(2, empty=[0, 1])
    assert merger.on_idle(0) == Idle()
    assert merger.on_end(0) is None
    assert merger.on_end(1) == Watermark(WATERMARK_MAX)


def test_when_all_are_idle_it_says_so_once():
    merger = WatermarkMerger(2)
    assert merger.on_idle(0) is None
    assert merger.on_idle(1) == Idle()
    assert merger.on_idle(1) is None


def test_ended_channels_do_not_hold_back_and_the_last_end_ends_time():
    merger = WatermarkMerger(2)
    assert merger.on_end(0) is None
    assert merger.on_watermark(1, 8) == Watermark(8)
    assert merger.on_end(1) == Watermark(WATERMARK_MAX)


def test_time_does_not_end_while_a_channel_is_only_idle():
    merger = WatermarkMerger(3)
    assert merger.on_watermark(0, 8) is None
    assert merger.on_end(1) is None
    assert merger.on_idle(0) is None
    assert merger.on_end(2) == Idle(), "all that may still bring rows is idle"
    merger.on_activity(0)
    assert merger.on_watermark(0, 9) == Watermark(9)
    assert merger.on_end(0) == Watermark(WATERMARK_MAX)


def test_channels_idle_together_are_not_left_behind_by_the_first_to_hear_of_rows():
    """Rows of the second channel from before the watermark 20 are on their way: event time does not pass them."""
    merger = WatermarkMerger(2, together=[(0, 1)])
    merger.on_watermark(0, 10)
    assert merger.on_watermark(1, 10) == Watermark(10)
    assert merger.on_idle(0) is None
    assert merger.others(0) == merger.others(1) == 10
    assert merger.on_idle(1) == Idle()
    assert merger.others(0) == WATERMARK_MAX
    assert merger.on_watermark(0, 20) is None, "the other one has not heard yet"
    assert merger.on_watermark(1, 20) == Watermark(20)


def test_channels_that_are_idle_together_hold_back_no_others_then():
    merger = WatermarkMerger(3, together=[(1, 2)])
    assert merger.on_watermark(0, 10) is None
    assert merger.on_idle(1) is None
    assert merger.on_end(2) == Watermark(10), "what has ended is as idle as the rest"
    merger.on_activity(1)
    assert merger.on_watermark(0, 20) is None
    assert merger.on_idle(1) == Watermark(20)
    assert merger.on_end(1) is None
    assert merger.on_end(0) == Watermark(WATERMARK_MAX)


def test_later_channels_hold_event_time_back_once_all_others_have_ended():
    merger = WatermarkMerger(4)
    merger.count_later([2, 3])
    assert merger.on_watermark(0, 5) is None
    assert merger.on_watermark(1, 3) == Watermark(3)
    assert merger.on_end(1) == Watermark(5)
    assert merger.others(0) == WATERMARK_MAX
    assert merger.on_end(0) is None, "channels 2 and 3 have had no row"
    assert merger.on_watermark(2, 9) is None
    assert merger.on_watermark(3, 7) == Watermark(7)
    assert merger.on_idle(3) == Watermark(9)


def test_a_timeless_channel_holds_nothing_back_whatever_it_brings():
    merger = WatermarkMerger(3, timeless=[2])
    assert merger.on_watermark(0, 10) is None
    merger.on_activity(2)
    assert merger.after_timeless_rows() is None
    assert merger.on_watermark(1, 20) == Watermark(10)
    assert merger.on_watermark(2, WATERMARK_MIN) is None, "its step repeats what it said"
    assert merger.on_watermark(0, 20) == Watermark(20)


def test_rows_of_a_timeless_channel_do_not_end_the_idleness_of_all_others():
    merger = WatermarkMerger(2, timeless=[1])
    assert merger.on_idle(0) == Idle()
    merger.on_activity(1)
    assert merger.after_timeless_rows() == Idle()
    assert merger.on_watermark(0, 5) == Watermark(5)


def test_the_end_of_time_waits_for_the_end_of_a_timeless_channel():
    """Timers that are held for the end give rows that others may not pass."""
    merger = WatermarkMerger(2, timeless=[1])
    assert merger.on_end(0) is None
    merger.on_activity(1)
    assert merger.after_timeless_rows() is None
    assert merger.on_end(1) == Watermark(WATERMARK_MAX)
    merger = WatermarkMerger(2, timeless=[1])
    assert merger.on_end(1) is None
    assert merger.on_watermark(0, 5) == Watermark(5)
    assert merger.on_end(0) == Watermark(WATERMARK_MAX)
