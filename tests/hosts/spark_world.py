"""A cluster with real Spark: standalone master and workers, S3, Kafka, two daemons, the driver, each on a host."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.hosts.namespaces import PRIVATE
from tests.hosts.spark_app import Order
from tests.hosts.world import DAEMONS, DRIVER, PATIENCE_S, STORE, TOKEN, World, processes_of
from tests.integration.chaos import workload
from tests.integration.chaos.reader import TRUTH
from tests.integration.chaos.verdict import Figures, Rows, SinkAudit
from tests.soak.topic import Topic
from tests.waiting import until

MASTER, KAFKA = "master", "kafka"
WORKERS = ("worker-0", "worker-1")
SPARK_HOSTS = (STORE, KAFKA, *DAEMONS, MASTER, DRIVER, *WORKERS)
_CORES = 2  # of a worker: each can run all slots
_SLOTS = 2
_MASTER_PORT, _KAFKA_PORT = 7077, 9092
_DEPLOY = "org.apache.spark.deploy"
_JVM = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.worker.timeout=10"
_SMALL_MB = "256m"


@dataclass
class SparkWorld(World):
    slots: tuple[str, ...] = ()  # Spark starts the slots
    starts: int = field(default=0)  # of the driver

    def start(self) -> None:
        for folder in (self.logs, self.target, PRIVATE / "local"):
            folder.mkdir(parents=True, exist_ok=True)
        self._token().write_text(TOKEN)
        self._token().chmod(0o600)
        self._start_store()
        kafka = [sys.executable, "-m", "tests.hosts.kafka_host", self._bootstrap()]
        self._run(KAFKA, KAFKA, [*kafka, workload.TOPIC, str(workload.PARTITIONS)])
        self._spark(MASTER, f"{_DEPLOY}.master.Master", "--port", str(_MASTER_PORT))
        for host in DAEMONS:
            self._start_daemon(host)
            until(lambda host=host: self._answers(host), f"{host} answers", PATIENCE_S)
        until(lambda: self._has_said(MASTER, "Starting Spark master"), "the master is up", PATIENCE_S)
        for host in WORKERS:
            self._start_worker(host)
        until(lambda: self._has_said(KAFKA, "serves"), "Kafka serves", PATIENCE_S)
        self._start_driver()
        until(lambda: self.status() or self._check(), "the job is known", PATIENCE_S)

    @contextlib.contextmanager
    def killed(self, what: str) -> Iterator[None]:
        """Kills a slot, or an executor with slots, of any host, with SIGKILL."""
        found = until(lambda: self._victims(what), f"there is a {what} to kill", PATIENCE_S)
        os.kill(found[-1], signal.SIGKILL)
        yield

    def bring_back(self, host: str) -> None:
        if host in WORKERS:
            self._start_worker(host)
        elif host == DRIVER:
            self._start_driver()
        else:
            super().bring_back(host)

    def audits(self) -> dict[str, Figures]:
        """Figures of Kafka's topic, read from the beginning."""
        topic, audit = Topic(self._bootstrap(), workload.TOPIC, workload.PARTITIONS), SinkAudit(TRUTH)
        with contextlib.closing(topic):
            while len(topic.ended) < topic.partitions:
                table = topic.read()
                if table is not None:
                    columns = [table.column(name).to_numpy() for name in ("value", "key", "n", "due_ns")]
                    audit.observe(workload.TOPIC, Rows(*columns))
        audit.figures.wrong_observations = 0  # records of a transaction are read partition by partition
        return {workload.TOPIC: audit.figures}

    def _victims(self, what: str) -> list[int]:
        """Slots of the job, or executors on hosts of these slots."""
        status = self.status()
        slots = set() if status is None else {each.pid for each in status.slots}
        found = {host: processes_of(host) for host in WORKERS}
        if what == "slot":
            return [pid for pids in found.values() for pid in pids if pid in slots]
        used = [pids for pids in found.values() if slots & set(pids)]
        return [pid for pids in used for pid in pids if "CoarseGrainedExecutorBackend" in _command(pid)]

    # ------------------------------------------------------------ processes

    def _start_worker(self, host: str) -> None:
        size = ("--cores", str(_CORES), "--memory", "1g")
        self._spark(
            host, f"{_DEPLOY}.worker.Worker", *size, "--work-dir", str(PRIVATE / "local" / host), self._master()
        )

    def _spark(self, host: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        whole = [str(home / "bin" / "spark-class"), arguments[0], "--host", self.network.address(host)]
        settings = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": self.network.address(host),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": _SMALL_MB,
            "SPARK_DAEMON_JAVA_OPTS": _JVM,
        }
        pairs = [f"{name}={value}" for name, value in settings.items()]
        self._run(host, host, ["env", *pairs, *whole, "--webui-port", "0", *arguments[1:]])

    def _start_driver(self) -> None:
        self.starts += 1
        order = Order(
            master=self._master(),
            driver=self.network.address(DRIVER),
            checkpoints=self._checkpoints(),
            coordinator=[self._rest(daemon) for daemon in self.daemons],
            token_file=str(self._token()),
            target=str(self.target),
            bootstrap=self._bootstrap(),
            rows_per_second=self.chosen.rows_per_second,
            parallelism=_SLOTS,
            slot_timeout_s=self.chosen.slot_timeout_s,
        )
        file = PRIVATE / f"order-{self.starts}.json"
        file.write_bytes(msgspec.json.encode(order))
        address = f"SPARK_LOCAL_IP={self.network.address(DRIVER)}"
        self._run(DRIVER, DRIVER, ["env", address, sys.executable, "-m", "tests.hosts.spark_app", str(file)])

    def _has_said(self, name: str, text: str) -> bool:
        self._check()
        return text in self.processes[name].log.read_text(errors="replace")

    def _master(self) -> str:
        return f"spark://{self.network.address(MASTER)}:{_MASTER_PORT}"

    def _bootstrap(self) -> str:
        return f"{self.network.address(KAFKA)}:{_KAFKA_PORT}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
