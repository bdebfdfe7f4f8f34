"""A lost marker: the decision that the exactly-once Kafka sink requests from a person, and the reach of the answer."""

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka.admin import AdminClient

from barrier_runtime.connectors.kafka.sink import transactions as kafka_transactions
from barrier_runtime.connectors.kafka.sink.topic_limits import LIMITS_VERSION, KafkaLimits, encode_limits
from barrier_runtime.state.errors import Corrupt, Fenced, InvalidJob, Unavailable
from barrier_runtime.state.store.memory import Fault
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.paths import Paths
from examples.servers import KafkaServer
from examples.servers.kafka_ends import asked_again, done_at_last
from tests.ends.kafka_target import Job, Topic, kafka_sink, numbers, sealed


def delete_markers(kafka: KafkaServer, job: Job) -> None:
    """Deletes markers, as the broker does with offsets older than offsets.retention.minutes."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    known = asked_again(lambda: admin.list_consumer_groups().result()).valid
    groups = [each.group_id for each in known if job.name in each.group_id]
    assert groups
    for group in groups:
        asked = [ConsumerGroupTopicPartitions(group)]
        # A broker writes the marker a moment after the commit's confirmation, and would write a deleted one again.
        asked_again(
            lambda asked=asked, group=group: admin.list_consumer_group_offsets(asked, require_stable=True)[
                group
            ].result()
        )
        done_at_last(
            lambda group=group: admin.delete_consumer_groups([group])[group].result(), KafkaError.GROUP_ID_NOT_FOUND
        )


def test_a_marker_that_is_gone_stops_the_commit_until_a_person_has_looked(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """T4: rows are neither dropped nor doubled on a guess; the person's word decides."""
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.commit(committable)
    sink.close()
    delete_markers(kafka, job)
    with pytest.raises(
        Corrupt,
        match=r"whether checkpoint 1 of subtask 0 is in topic .*lost_marker=\{'line/0/1': n\}\): n is 1 if .* 0 if",
    ):
        job.open(kafka_sink(kafka, topic), token=2, recover=[committable])
    told = job.open(kafka_sink(kafka, topic, lost_marker={"line/0/1": 1}), token=3, recover=[committable])
    told.commit(sealed(told, 2, [2]))
    assert numbers(topic) == [1, 2]


def test_a_person_may_say_that_the_rows_are_not_there(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 7, [1])
    sink.close()
    delete_markers(kafka, job)
    job.open(kafka_sink(kafka, topic, lost_marker={"line/0/1": 6}), token=2, recover=[committable])
    assert numbers(topic) == [1]


@pytest.mark.parametrize("last_there", range(4))
def test_the_answer_says_how_far_of_several_checkpoints_the_rows_are_there(
    kafka: KafkaServer, topic: Topic, job: Job, last_there: int
) -> None:
    """T4: of different generations, too; rows that the answer declares present are not written, all others are."""
    first, second = (job.open(kafka_sink(kafka, topic), token=token) for token in (1, 2))
    decided = [sealed(first, 1, [1]), sealed(second, 2, [2]), sealed(second, 3, [3])]
    second.close()
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"n is 1 if .*, 3 if all up to checkpoint 3 are, 0 if they are not"):
        job.open(kafka_sink(kafka, topic), token=3, recover=decided)
    told = job.open(kafka_sink(kafka, topic, lost_marker={"line/0/1": last_there}), token=4, recover=decided)
    told.commit(sealed(told, 4, [4]))
    assert numbers(topic) == list(range(last_there + 1, 5))


def test_an_answer_that_stays_in_the_program_is_good_for_that_loss_only(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """T4, T6: the same checkpoint is pending when the marker is lost a second time; the rows were written between the
    losses.
    """
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.close()
    delete_markers(kafka, job)
    answers = {"line/0/1": 0}
    job.open(kafka_sink(kafka, topic, lost_marker=answers), token=2, recover=[committable]).close()
    job.open(kafka_sink(kafka, topic, lost_marker=answers), token=3, recover=[committable]).close()
    assert numbers(topic) == [1]
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/2': n\}"):
        job.open(kafka_sink(kafka, topic, lost_marker=answers), token=4, recover=[committable])
    answers["line/0/2"] = 1
    job.open(kafka_sink(kafka, topic, lost_marker=answers), token=5, recover=[committable])
    assert numbers(topic) == [1]


def test_a_marker_that_is_gone_is_missed_where_no_list_shows_that_there_was_one(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """O10, T4: the rows were written, and are still staged; a first marker would write them again."""
    job.store.inject(Fault.STALE_LIST, "list", times=None)
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    job.store.inject(Fault.FAIL_BEFORE, "delete", "/staged/")
    with pytest.raises(Unavailable):  # the sink dies before the deletion of the written rows
        sink.commit(committable)
    sink.close()
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/1': n\}"):
        job.open(kafka_sink(kafka, topic), token=2, recover=[committable])
    assert numbers(topic) == [1]


def test_an_answer_is_good_for_one_loss_where_no_list_shows_that_it_was_used(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """O10, T4: the list shows the notes of the first generation alone."""
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.close()
    job.store.inject(Fault.STALE_LIST, "list", times=None)
    delete_markers(kafka, job)
    answers = {"line/0/1": 0}
    job.store.inject(Fault.FAIL_BEFORE, "delete", "/staged/")
    with pytest.raises(Unavailable):
        job.open(kafka_sink(kafka, topic, lost_marker=answers), token=2, recover=[committable])
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/2': n\}"):
        job.open(kafka_sink(kafka, topic, lost_marker=answers), token=3, recover=[committable])
    assert numbers(topic) == [1]


def test_an_answer_that_nothing_depended_on_is_used_for_no_later_loss(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """T4: the sink requested the answer, and then the job began with no commit in doubt: the next marker has a new
    name.
    """
    sink = job.open(kafka_sink(kafka, topic))
    sink.close()
    delete_markers(kafka, job)
    answers = {"line/0/1": 0}
    sink = job.open(kafka_sink(kafka, topic, lost_marker=answers), token=2)
    committable = sealed(sink, 1, [1])
    sink.commit(committable)
    sink.close()
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/2': n\}"):
        job.open(kafka_sink(kafka, topic, lost_marker=answers), token=3, recover=[committable])
    assert numbers(topic) == [1]


def test_a_zombie_begins_no_marker_after_a_later_generation(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """Z1: the zombie's note would give the next loss a name that was used before."""
    job.open(kafka_sink(kafka, topic), token=2).close()
    delete_markers(kafka, job)
    zombie = kafka_sink(kafka, topic)
    for _ in range(2):
        with pytest.raises(Fenced, match="generation 2 has begun a marker; generation 1 stops"):
            job.open(zombie, token=1)


def test_an_unknown_outcome_of_a_note_is_tried_again_before_any_row(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """O1: the note lands late, and the marker must be there from then on."""
    sink = kafka_sink(kafka, topic)
    job.store.inject(Fault.LAND_LATE, "put_if_absent")
    with pytest.raises(Unavailable, match=r"nobody knows whether .*/delivered/line/0/.* was put: tried again"):
        job.open(sink)
    committable = sealed(sink, 1, [1])
    sink.recover([committable])
    assert job.store.land_late() == 1
    sink.close()
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/1': n\}"):
        job.open(kafka_sink(kafka, topic), token=2, recover=[committable])


def note_of_an_earlier_build(job: Job, generation: int) -> str:
    key = Paths(job.name).delivery_note("out", job.lineage, 0, 0, generation)
    job.store.put(key, encode_limits(KafkaLimits(LIMITS_VERSION, 1_000_000, 60_000, 3_600)))
    return key


def forget_notes(job: Job) -> None:
    job.store.delete(info.key for info in job.store.list(f"{job.name}/write-ahead/out/delivered/"))


def test_a_note_of_an_earlier_build_is_known_until_a_later_one_is_there(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """Those were named after generations, so only a list shows them."""
    sink = job.open(kafka_sink(kafka, topic), token=3)
    committable = sealed(sink, 1, [1])
    sink.commit(committable)
    sink.close()
    forget_notes(job)
    note = note_of_an_earlier_build(job, 3)
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/3': n\}"):
        job.open(kafka_sink(kafka, topic), token=4, recover=[committable])
    assert job.store.get(note)
    answers = {"line/0/3": 1}
    job.open(kafka_sink(kafka, topic, lost_marker=answers), token=5, recover=[committable]).close()
    assert get_or_none(job.store, note) is None
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/5': n\}"):
        job.open(kafka_sink(kafka, topic, lost_marker=answers), token=6, recover=[committable])
    assert numbers(topic) == [1]


def test_a_marker_of_an_earlier_build_gets_a_note_that_needs_no_list(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.close()
    forget_notes(job)
    note = note_of_an_earlier_build(job, 1)
    job.open(kafka_sink(kafka, topic), token=2, recover=[committable]).close()
    assert get_or_none(job.store, note) is None
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"lost_marker=\{'line/0/2': n\}"):
        job.open(kafka_sink(kafka, topic), token=3, recover=[committable])


def test_each_subtask_asks_for_itself(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """R2: two subtasks lost their markers; only one had written; a single subtask finishes for both."""
    sinks = [job.open(kafka_sink(kafka, topic), subtask=number, parallelism=2) for number in range(2)]
    decided = [sealed(sink, 1, [number]) for number, sink in enumerate(sinks)]
    sinks[0].commit(decided[0])
    for sink in sinks:
        sink.close()
    delete_markers(kafka, job)
    answers = {"line/0/1": 1}
    with pytest.raises(Corrupt, match=r"checkpoint 1 of subtask 1 is in topic .*'line/1/1': n"):
        job.open(kafka_sink(kafka, topic, lost_marker=answers), token=2, recover=decided).close()
    answers["line/1/1"] = 0
    job.open(kafka_sink(kafka, topic, lost_marker=answers), token=3, recover=decided)
    assert numbers(topic) == [0, 1]


def test_an_answer_beyond_what_was_decided_is_refused(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """Rows of later checkpoints would be taken for written, and never be."""
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.close()
    delete_markers(kafka, job)
    with pytest.raises(InvalidJob, match=r"says more than there can be .* decided of subtask 0 is 1: correct it"):
        job.open(kafka_sink(kafka, topic, lost_marker={"line/0/1": 2}), token=2, recover=[committable])
    assert topic.read() == []


def test_an_answer_outlives_brokers_that_fail_before_it_is_in_the_marker(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery is repeated in the same process, without another question to the person."""
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.commit(committable)
    sink.close()
    delete_markers(kafka, job)
    told = kafka_sink(kafka, topic, lost_marker={"line/0/1": 1})

    def fail(self: object, marker: object) -> None:
        raise Unavailable("the brokers are away")

    with monkeypatch.context() as patch:
        patch.setattr(kafka_transactions.MarkedProducer, "_commit", fail)
        with pytest.raises(Unavailable, match="are away"):
            job.open(told, token=2, recover=[committable])
    told.recover([committable])
    told.commit(sealed(told, 2, [2]))
    assert numbers(topic) == [1, 2]


def test_a_marker_that_is_gone_is_no_trouble_when_nothing_was_pending(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    sink = job.open(kafka_sink(kafka, topic))
    sink.commit(sealed(sink, 1, [1]))
    sink.close()
    delete_markers(kafka, job)
    again = job.open(kafka_sink(kafka, topic), token=2)
    again.commit(sealed(again, 2, [2]))
    assert numbers(topic) == [1, 2]
