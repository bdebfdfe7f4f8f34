"""TLS: a handshake that a restarting broker cuts off passes, a wrong certificate does not."""

import logging
from collections.abc import Iterator

import pytest

from barrier_runtime.connectors.kafka.sink import client as kafka_client
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers import KafkaServer
from tests.ends import kafka_world
from tests.ends.kafka_target import Job, commit_until, new_topic, numbers, sealed
from tests.ends.kafka_tls import Certificates, CutHandshakes, tls_server
from tests.ends.kafka_world import reading, rows_from, source_of
from tests.waiting import until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def network() -> Iterator[CutHandshakes]:
    with CutHandshakes() as network:
        yield network


@pytest.fixture(scope="module")
def secure(certificates: Certificates, network: CutHandshakes) -> Iterator[KafkaServer]:
    with tls_server(certificates, network) as server:
        yield server


def settings(authority: str) -> dict[str, object]:
    return {"security.protocol": "SSL", "ssl.ca.location": authority, "reconnect.backoff.max.ms": 200}


class _Place:
    def __init__(self, network: CutHandshakes) -> None:
        self.bootstrap = network.place


@pytest.mark.slow
def test_a_sink_goes_on_after_handshakes_that_were_cut_off(
    secure: KafkaServer,
    certificates: Certificates,
    network: CutHandshakes,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T4: clients meet such handshakes when a broker restarts; for a time each commit fails, and none is refused."""
    with new_topic(secure) as topic:
        sink = job.open(KafkaSink(network.place, topic.name, config=settings(certificates.ca)))
        sink.commit(sealed(sink, 1, [1]))
        assert numbers(topic) == [1]
        second = sealed(sink, 2, [2])
        met, network.cut = network.met, True
        network.disconnect()
        with monkeypatch.context() as patch:
            patch.setattr(kafka_client, "ANSWER_S", 2.0)
            while network.met < met + 3:
                with pytest.raises(Unavailable):
                    sink.commit(second)
        network.cut = False
        commit_until(sink, [second])
        assert numbers(topic) == [1, 2]


@pytest.mark.slow
def test_a_source_goes_on_after_handshakes_that_were_cut_off(
    secure: KafkaServer, certificates: Certificates, network: CutHandshakes
) -> None:
    topic = kafka_world.Topic(secure)
    topic.write(["1"])
    source = source_of(_Place(network), topic.name, config=settings(certificates.ca))
    with reading(source, source.splits(1)[0]) as reader:
        assert [row["value"] for row in rows_from(reader, 1)] == [b"1"]
        met, network.cut = network.met, True
        network.disconnect()
        until(lambda: network.met >= met + 3, "handshakes were cut off")
        network.cut = False
        topic.write(["2"])
        assert [row["value"] for row in rows_from(reader, 1)] == [b"2"]


@pytest.mark.slow
def test_wrong_certificate_ends_the_job_with_its_reason_and_the_right_opens_again(
    secure: KafkaServer,
    certificates: Certificates,
    network: CutHandshakes,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.kafka.errors.REFUSED_S", 3.0)
    with new_topic(secure) as topic:
        wrong = KafkaSink(network.place, topic.name, config=settings(certificates.other_ca))
        with pytest.raises(InvalidJob, match=r"certificate verify failed.*ssl\.\* in the sink's config="):
            job.open(wrong)
        sink = job.open(KafkaSink(network.place, topic.name, config=settings(certificates.ca)), token=2)
        sink.commit(sealed(sink, 1, [1]))
        assert numbers(topic) == [1]


@pytest.mark.slow
def test_a_cluster_that_nobody_serves_takes_one_line_of_the_log_before_the_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from examples.servers.base import free_port

    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.client._TIMEOUT_S", 3.0)

    class Nobody:
        bootstrap = f"127.0.0.1:{free_port()}"

    with caplog.at_level(logging.DEBUG), pytest.raises(Unavailable, match="start the broker, or correct bootstrap"):
        source_of(Nobody(), "topic").splits(1)
    about = [record.getMessage() for record in caplog.records if Nobody.bootstrap in record.getMessage()]
    assert len(about) <= 1, about
