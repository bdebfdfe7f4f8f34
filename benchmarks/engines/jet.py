"""Hazelcast Jet: the running count per key in an embedded member of a single JVM, exactly once.

Settings are the defaults, except for `parallelism` cooperative threads and processors per vertex, and a snapshot every
`interval_ms`. State is on the heap and snapshots are in the member's own maps (the open source edition offers nothing
else), so the job is lost with the process. Maven fetches the jar once. This process starts the JVM, passes on the order
to stop, and reads the snapshots from Hazelcast's log.
"""

import datetime
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.engines.child import leave_facts, run_program, spec_of_this_run
from benchmarks.engines.java_build import HERE, classes, connectors
from benchmarks.spec import Checkpoint, Facts, RunSpec
from examples.servers.base import ServerError, find_program

_OPENED = {
    "java.base": ("java.lang", "sun.nio.ch"),
    "java.management": ("sun.management",),
    "jdk.management": ("com.sun.management.internal",),
}
_MODULES = ("java.se",)
_STORED = re.compile(r"Snapshot (\d+) phase 1 for .* completed with status SUCCESS in (\d+)ms, ([\d,.]+) bytes")
_COMPLETED = re.compile(r"^(\S+ \S+) .*Snapshot (\d+) for .* completed in (\d+)ms, status=success")
_LOG = "jet.log"


def settings(spec: RunSpec) -> dict[str, str]:
    return {
        "processing guarantee": "exactly once",
        "snapshot interval": f"{spec.interval_ms} ms",
        "cooperative threads": str(spec.parallelism),
        "local parallelism": str(spec.parallelism),
        "state": "heap; snapshots in maps of the one member",
        "jvm": "-Xmx4g, default collector",
    }


def missing() -> str | None:
    """Reason why Jet cannot run here, or None. Fetches the jar and compiles our classes if missing."""
    try:
        connectors("jet")
        classes("jet")
    except ServerError as error:
        return str(error)
    return None


def main() -> int:
    spec = spec_of_this_run()
    log = Path(spec.folder, _LOG).resolve()
    Path(spec.folder, "logging.properties").write_text(_logging(log))
    code = run_program(_java(spec), os.environ)
    if code == 0:
        found = snapshots(log.read_text(errors="replace").splitlines() if log.exists() else [])
        leave_facts(spec, Facts(version=_version(), settings=settings(spec), checkpoints=found))
    return code


def _java(spec: RunSpec) -> list[str]:
    options = {
        "rate": repr(spec.rate),
        "keys": str(spec.keys),
        "parallelism": str(spec.parallelism),
        "interval_ms": str(spec.interval_ms),
        "folder": spec.folder,
    }
    return [
        find_program("java", "openjdk-17-jre-headless"),
        "-Xmx4g",
        "-Duser.timezone=UTC",
        "-Dhazelcast.logging.type=jdk",
        f"-Djava.util.logging.config.file={spec.folder}/logging.properties",
        *(f"--add-modules={name}" for name in _MODULES),
        *(f"--add-opens={module}/{name}=ALL-UNNAMED" for module, names in _OPENED.items() for name in names),
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        "-cp",
        os.pathsep.join(map(str, [classes("jet"), *connectors("jet")])),
        "bench.jet.JetJob",
        *(f"{name}={value}" for name, value in options.items()),
    ]


def _logging(log: Path) -> str:
    """Logs errors, and a line per snapshot."""
    return f"""handlers = java.util.logging.FileHandler
.level = WARNING
com.hazelcast.jet.impl.MasterSnapshotContext.level = FINE
java.util.logging.FileHandler.pattern = {log}
java.util.logging.FileHandler.level = FINE
java.util.logging.FileHandler.formatter = java.util.logging.SimpleFormatter
java.util.logging.SimpleFormatter.format = %1$tF %1$tT.%1$tL %5$s%6$s%n
"""


def snapshots(lines: Iterable[str]) -> list[Checkpoint]:
    """Snapshots from Hazelcast's log, where each snapshot has a line with the stored size, then a line for the end."""
    found, stored = [], dict[str, tuple[float, int]]()
    for line in lines:
        if match := _STORED.search(line):
            stored[match[1]] = float(match[2]), int(re.sub(r"\D", "", match[3]))
        elif (match := _COMPLETED.match(line)) and match[2] in stored:
            ended = datetime.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=datetime.timezone.utc)
            duration_ms, (phase_1_ms, size) = float(match[3]), stored.pop(match[2])
            found.append(
                Checkpoint(
                    at_ns=round(ended.timestamp() * 1000 - duration_ms) * 1_000_000,
                    duration_ms=duration_ms,
                    phases={"phase 1": phase_1_ms},
                    bytes=size,
                    full_bytes=size,  # each snapshot holds all state
                )
            )
    return found


def _version() -> str:
    """Version in the jar's POM."""
    return str(re.findall(r"<version>(\d[\d.]+)</version>", (HERE / "jet.xml").read_text())[-1])


if __name__ == "__main__":
    sys.exit(main())
