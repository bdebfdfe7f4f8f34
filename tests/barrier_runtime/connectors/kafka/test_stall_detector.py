"""Detection of silent partitions from queries, answers and arriving records."""

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from barrier_runtime.connectors.kafka.clients import Asker
from barrier_runtime.connectors.kafka.source.client import KafkaClient
from barrier_runtime.connectors.kafka.source.partition_queue import PartitionQueue
from barrier_runtime.connectors.kafka.source.position import KafkaPosition
from barrier_runtime.connectors.kafka.source.stall_detector import StallDetector, StallTimeouts
from barrier_runtime.connectors.kafka.source.topic_checks import RetentionWatch
from barrier_runtime.state.errors import InvalidJob

A, B, C = ("t", 0), ("t", 1), ("u", 0)
PATIENCE = StallTimeouts(quiet=5, still=15, answer=1.5)


def watched(*partitions, until, since=0.0):
    """Returns a detector after `until` seconds in which no record of these partitions arrived and no query was
    answered.
    """
    detector = StallDetector(PATIENCE)
    turn(detector, partitions, since, until)
    return detector


def turn(detector, partitions, since, until):
    """Polls the detector ten times a second; returns (time, partitions to query)."""
    asked = []
    for tenth in range(round(since * 10), round(until * 10) + 1):
        found = detector.to_ask(partitions, tenth / 10)
        if found:
            asked.append((tenth / 10, found))
    return asked


def test_quiet_partitions_are_asked_about_together_and_seldom():
    detector = StallDetector(PATIENCE)
    assert turn(detector, [A, B], 0, 4.9) == []
    assert turn(detector, [A, B], 5, 16) == [(5, [A, B]), (10, [A, B]), (15, [A, B])]


def test_what_speaks_now_and_then_is_never_asked_about():
    detector = StallDetector(PATIENCE)
    for second in range(60):
        detector.heard([A], second)
        assert turn(detector, [A], second, second + 0.9) == []


def test_an_end_that_stays_unread_over_many_answers_makes_a_partition_stand_still():
    detector = watched(A, B, until=5)
    detector.answered({A: 10, B: 7}, {A: 12, B: 7}, 5)
    for second in (10, 15, 19.9):
        turn(detector, [A, B], second - 4, second)
        detector.answered({A: 10, B: 7}, {A: 99, B: 7}, second)
        assert detector.stalled(second) is None
    turn(detector, [A, B], 20, 20)
    detector.answered({A: 10, B: 7}, {A: 99, B: 7}, 20)
    assert detector.stalled(20) == (A, 12), "the first end that was heard of"


@pytest.mark.parametrize(
    "ends_it",
    [
        lambda detector: detector.heard([A], 10),
        lambda detector: detector.answered({A: 12}, {A: 12}, 10),  # read meanwhile, or deleted after the position
        lambda detector: detector.answered({A: 10}, {}, 10),  # the topic is currently missing
        lambda detector: detector.unanswered([A], 10),
        lambda detector: turn(detector, [B], 10, 10),  # full, over or removed
        lambda detector: turn(detector, [A], 15, 15),  # the thread itself was held up
    ],
)
def test_whatever_explains_the_silence_ends_the_suspicion(ends_it):
    detector = watched(A, until=9)
    detector.answered({A: 10}, {A: 12}, 9)
    ends_it(detector)
    turn(detector, [A], 15.1, 15.1)
    assert detector.stalled(1_000) is None


def test_a_partition_that_was_full_begins_anew_when_it_goes_on():
    detector = watched(A, until=4)
    turn(detector, [], 4.1, 60)
    detector.heard([A], 60)
    assert turn(detector, [A], 60.1, 70.1) == [(65.0, [A]), (70.0, [A])]


def test_a_thread_that_was_held_up_could_hear_nothing():
    detector = watched(A, until=4)
    assert turn(detector, [A], 30, 34.9) == []
    assert turn(detector, [A], 35, 35) == [(35, [A])]


def test_partitions_are_probed_singly_suspect_first_while_a_broker_is_away():
    detector = watched(A, B, C, until=5)
    detector.unanswered([A, B, C], 5)
    partitions = [A, B, C]
    assert turn(detector, partitions, 5.1, 19.9) == []
    assert turn(detector, partitions, 20, 20) == [(20, [A])]
    detector.unanswered([A], 20)
    assert turn(detector, partitions, 20.1, 35) == [(35, [B])]
    detector.answered({B: 1}, {B: 5}, 35)
    assert turn(detector, partitions, 35.1, 50) == [(40, [B]), (45, [B]), (50, [B])]
    detector.answered({B: 1}, {B: 5}, 50)
    assert detector.stalled(50) == (B, 5)
    detector.heard([B], 51)
    assert turn(detector, partitions, 50.1, 60) == [(55, [C]), (60, [A])]
    assert turn(detector, partitions, 60.1, 305)[-1] == (305, partitions), "together again"


def silent(detector, since, until):
    """Client without records while the partition's end is beyond the position. Returns the time of the replacement."""
    for second in range(since, until):
        turn(detector, [A], second, second + 0.9)
        detector.answered({A: 10}, {A: 12}, second)
        if detector.stalled(second) is not None:
            detector.replaced(A)
            return second
    return None


def test_a_client_that_brings_nothing_again_is_replaced_after_twice_the_time():
    detector = StallDetector(PATIENCE)
    assert [silent(detector, 0, 100), silent(detector, 16, 100), silent(detector, 47, 200)] == [15, 46, 107]


def test_a_partition_that_was_heard_is_given_the_usual_time_again():
    detector = StallDetector(PATIENCE)
    assert silent(detector, 0, 100) == 15
    detector.heard([A], 16)
    assert silent(detector, 17, 100) == 32


def test_a_partition_that_left_takes_its_blame_along():
    detector = StallDetector(PATIENCE)
    assert silent(detector, 0, 100) == 15
    turn(detector, [B], 16, 17)
    assert silent(detector, 18, 100) == 33


def test_client_that_lost_the_leader_is_suspected_like_a_silent_client():
    """The client may answer so forever, and no records arrive either."""
    detector = watched(A, B, until=5)
    for second in (5, 10, 15, 20):
        turn(detector, [A, B], second, second)
        detector.answered({A: 10, B: 7}, {A: None, B: 7}, second)
    assert detector.stalled(20) == (A, None)
    detector.answered({A: 10}, {A: 10}, 21)
    assert detector.stalled(30) is None


class Answers:
    """Replacement for the client library's consumer: the ends of partition 0, or an error."""

    def __init__(self, error=None):
        self.error = None if error is None else KafkaError(error)
        self.asked = 0

    def offsets_for_times(self, wanted, timeout):
        self.asked += 1

        class Answer:
            topic, partition, offset, error = "t", 0, 5, self.error

        return [Answer]

    def get_watermark_offsets(self, place, cached):
        return None

    def close(self): ...


def test_another_client_is_asked_for_retained_offsets_if_ours_lost_the_leader():
    others = [Answers(KafkaError.FENCED_LEADER_EPOCH), Answers()]
    made = iter(others)
    client = KafkaClient("source 'src'", "10.0.0.1:9092", "group", {})
    watch = RetentionWatch(client, confluent_kafka)
    watch._other = Asker(lambda: next(made))
    ours, queue = Answers(KafkaError.NOT_LEADER_FOR_PARTITION), PartitionQueue("t", 0, KafkaPosition(3), "here")
    assert watch.poll(ours, [queue]) == 1.0
    assert watch.poll(ours, [queue]) == 1.0
    assert queue.trouble is None
    assert watch.poll(ours, [queue]) == 30.0
    assert [ours.asked, *[each.asked for each in others]] == [1, 1, 1]
    assert isinstance(queue.trouble, InvalidJob)  # offset 3 is gone: 5 is the first retained offset
    watch.close()
