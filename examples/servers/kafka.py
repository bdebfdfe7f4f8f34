"""A temporary Kafka broker: broker and controller in one process (KRaft), from Maven Central."""

import base64
import contextlib
import functools
import hashlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.servers.base import Server, ServerError, free_port, run_as
from examples.servers.kafka_ends import TopicEnds, asked_again, done_at_last
from examples.servers.maven import java_program, maven_jars

_POM = Path(__file__).with_name("pom.xml")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_JVM = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", _QUIET]
_SETTINGS = {  # short waits and small internal topics: a single broker on a shared machine
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_replication_factor": 1,
    "offsets_topic_num_partitions": 4,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "transaction_state_log_num_partitions": 4,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
    "share_coordinator_state_topic_replication_factor": 1,
    "share_coordinator_state_topic_min_isr": 1,
    "broker_session_timeout_ms": 2000,  # the controller forgets a killed broker, which may then register again
    "broker_heartbeat_interval_ms": 200,
    "controller_quorum_election_timeout_ms": 100,
    "controller_quorum_election_backoff_max_ms": 100,
    "controller_quorum_fetch_timeout_ms": 500,
    "num_partitions": 2,
    "auto_create_topics_enable": "false",
    "controlled_shutdown_enable": "false",
    "log_segment_bytes": 64 << 20,
    "log_index_size_max_bytes": 1 << 20,
    "offsets_topic_segment_bytes": 1 << 20,
    "transaction_state_log_segment_bytes": 1 << 20,
    "num_network_threads": 2,
    "num_io_threads": 2,
    "background_threads": 2,
}


class KafkaServer(Server):
    name = "kafka"
    jvm = tuple(_JVM)

    def __init__(self, settings: dict[str, object]) -> None:
        self._classpath = f"{jars()}/*"
        super().__init__()
        self._controller_port = free_port()
        self._properties = self.directory / "server.properties"
        self.configure(**settings)
        run_as(
            "",
            [
                *self._java("kafka.tools.StorageTool"),
                *("format", f"--cluster-id={_cluster_id()}", "--config", str(self._properties)),
            ],
            self.directory,
        )

    @property
    def bootstrap(self) -> str:
        """host:port for clients' `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def configure(self, **settings: object) -> None:
        """Sets broker settings from the next start on.

        `transaction_max_timeout_ms` stands for `transaction.max.timeout.ms`."""
        chosen = {
            "process_roles": "broker,controller",
            "node_id": 1,
            "controller_quorum_voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised_listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller_listener_names": "CONTROLLER",
            "log_dirs": self.directory / "data",
            **_SETTINGS,
            **settings,
        }
        lines = (f"{name.replace('_', '.')}={value}\n" for name, value in chosen.items())
        self._properties.write_text("".join(lines))

    def command(self) -> list[str]:
        return [*self._java("kafka.Kafka"), str(self._properties)]

    def ready(self) -> bool:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return len(admin.list_topics(timeout=2).brokers) > 0

    def create_topic(self, topic: str, partitions: int = 1, **config: object) -> None:
        """Creates a topic, and returns when the topic is usable. `retention_ms=1000` stands for `retention.ms`."""
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        named = {name.replace("_", "."): str(value) for name, value in config.items()}
        wanted = NewTopic(topic, partitions, 1, config=named)
        done_at_last(lambda: admin.create_topics([wanted])[topic].result(), KafkaError.TOPIC_ALREADY_EXISTS)
        deadline = time.monotonic() + self.start_s
        while not asked_again(lambda: _has_leaders(admin, topic, partitions)):
            if time.monotonic() > deadline:
                raise ServerError(f"topic {topic} has no leaders after {self.start_s:.0f} s")
            time.sleep(0.02)
        TopicEnds(self.bootstrap, topic, partitions).committed()  # a leader may not know the topic yet

    def _java(self, main: str) -> list[str]:
        java = java_program()
        return [java, *self.jvm, *_loaded_from(class_archive(java)), "-cp", self._classpath, main]


def _has_leaders(admin: Any, topic: str, partitions: int) -> bool:
    known = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return len(known) >= partitions and all(part.leader >= 0 for part in known.values())


@contextlib.contextmanager
def kafka_server(**settings: object) -> Iterator[KafkaServer]:
    """A running broker without topics; `settings` as for `KafkaServer.configure`."""
    server = KafkaServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.close()


@functools.lru_cache
def jars() -> Path:
    """Directory with the broker's jars, fetched by Maven if this machine lacks this version."""
    version = re.findall(r"<kafka.version>(.*)</kafka.version>", _POM.read_text())[0]
    return maven_jars(_POM, f"kafka-{version}")


def class_archive(java: str) -> Path:
    """Archive of the broker's loaded classes for this `java`, if tests have made it.

    With the archive a broker starts in two thirds of the time."""
    found = shutil.which(java) or java
    real = Path(found).resolve()
    known = hashlib.sha256(f"{real} {real.stat().st_mtime_ns if real.exists() else 0}".encode()).hexdigest()[:12]
    return jars().with_name(f"{jars().name}-{known}.jsa")


def _loaded_from(archive: Path) -> list[str]:
    """Options to load classes from the archive; Java silently ignores an archive that does not fit."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.exists() else []


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
