"""Kafka Streams: a real-time workload in a single JVM, with RocksDB and a changelog topic.

Exactly once (v2) with the default commit interval of 100 ms, or at least once with the run's interval. Records are not
held back by the cache of the state store. Maven fetches the jars once. This process starts the JVM and passes on the
order to stop.
"""

import os
import re
import sys
from pathlib import Path
from typing import Final

from benchmarks.engines.child import leave_facts, run_program, spec_of_this_run
from benchmarks.engines.java_build import HERE, classes, connectors
from benchmarks.records import ID_DIGITS, NAMES
from benchmarks.spec import Facts, RunSpec
from examples.servers.base import ServerError, find_program

_FAMILY: Final = "kafka-streams"


def settings(spec: RunSpec) -> dict[str, str]:
    return {
        "application.id": spec.topic_in,
        "bootstrap.servers": spec.bootstrap,
        "processing.guarantee": "exactly_once_v2" if spec.guarantee == "exactly_once" else "at_least_once",
        "commit.interval.ms": str(spec.interval_ms),
        "num.stream.threads": str(spec.parallelism),
        "statestore.cache.max.bytes": "0",
        "auto.offset.reset": "earliest",
        "state.dir": str(Path(spec.folder, "checkpoints").resolve()),
    }


def missing() -> str | None:
    """Reason why Kafka Streams cannot run here, or None. Fetches the jars and compiles our class if missing."""
    try:
        connectors(_FAMILY)
        classes(_FAMILY)
    except ServerError as error:
        return str(error)
    return None


def main() -> int:
    spec = spec_of_this_run()
    code = run_program(_java(spec), os.environ)
    if code == 0:
        leave_facts(spec, Facts(version=_version(), settings=settings(spec)))
    return code


def _java(spec: RunSpec) -> list[str]:
    options = {
        "program": spec.workload,
        "topic_in": spec.topic_in,
        "topic_out": spec.topic_out,
        "names": str(NAMES),
        "id_digits": str(ID_DIGITS),
        **{f"conf.{name}": value for name, value in settings(spec).items()},
    }
    return [
        find_program("java", "openjdk-17-jre-headless"),
        "-Xmx4g",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        os.pathsep.join(map(str, [classes(_FAMILY), *connectors(_FAMILY)])),
        "bench.streams.StreamsJob",
        *(f"{name}={value}" for name, value in options.items()),
    ]


def _version() -> str:
    return str(re.findall(r"<version>(\d[\d.]+)</version>", (HERE / f"{_FAMILY}.xml").read_text())[0])


if __name__ == "__main__":
    sys.exit(main())
