"""Preflight of jobs whose hosts have planted faults, a fault per host; prints each matrix.

    python -m tests.hosts.planted [--ipv6]

A slot of another version ends its job, so each of these has a job beside the job with all other faults. Exits with 0
only if each fault has a line; also, with one line, on a machine without namespaces.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.tools.preflight import lines
from tests.hosts.namespaces import IPV4, IPV6, PRIVATE, Network, enter, is_inside, mount_full, why_forbidden
from tests.hosts.world import DAEMONS, DRIVER, PATIENCE_S, STORE, TOKEN, Chosen, World
from tests.waiting import until

_PYTHON, _PYARROW, _FIREWALL, _CLOCK, _DISK, _NO_STORE = "python", "pyarrow", "firewall", "clock", "disk", "no-store"
_SOUND = "sound"
JOBS = ((_FIREWALL, _CLOCK, _DISK, _NO_STORE, _SOUND), (_SOUND, _PYTHON), (_SOUND, _PYARROW))  # in order of starts
_PORTS = "7200-7209"
_CLAIMED = {_PYTHON: "Python=3.99.1", _PYARROW: "pyarrow=999.0.0"}
EXPECTED = {
    _PYTHON: "has Python 3.99.1, the coordinator has",
    _PYARROW: "has pyarrow 999.0.0, the coordinator has",
    _FIREWALL: "no answer for 4 s: open the ports",
    _CLOCK: "is 240 s behind the coordinator's",
    _DISK: "has 0 MiB free in",
    _NO_STORE: "cannot use the checkpoint store",
}


@dataclass
class PlantedWorld(World):
    def start(self) -> None:
        for folder in (self.logs, self.target, PRIVATE / "local"):
            folder.mkdir(parents=True, exist_ok=True)
        self._token().write_text(TOKEN)
        self._token().chmod(0o600)
        self._start_store()
        self._start_daemon(DAEMONS[0])
        until(lambda: self._answers(DAEMONS[0]), "the daemon answers", PATIENCE_S)
        self._start_driver()
        until(lambda: self._has_begun() or self._check(), "the job has begun", PATIENCE_S)

    def start_slots(self) -> Iterator[None]:
        """Starts all slots at once but the last; then yields, and starts the last."""
        *first, last = self.slots
        for host in first:
            self._start_slot(self.slots.index(host), host)
        until(lambda: self._check() or self._registered() >= set(first), f"{first} have registered", PATIENCE_S)
        yield
        self._start_slot(self.slots.index(last), last)

    def _has_begun(self) -> bool:
        """Whether slots find the job's description in the log."""
        status = self.status()
        return status is not None and status.phase == "waiting"

    def _registered(self) -> set[str]:
        status = self.status()
        found = () if status is None else status.preflight.hosts
        return {self.slots[slot] for each in found for slot in each.slots}

    def _environment_of(self, host: str) -> dict[str, str]:
        return {"BARRIER_RUNTIME_SLOT_PORTS": _PORTS, "HOSTS_VERSIONS": _CLAIMED.get(host, "")}

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Faults of hosts that hold from the start."""
        with ExitStack() as faults:
            if _DISK in self.slots:
                mount_full(PRIVATE / "local" / _DISK)
                faults.enter_context(self.network.closed(_FIREWALL, _PORTS))
                faults.enter_context(self.skewed(_CLOCK, -240))  # more than 300 s: REST refuses the command
            yield


def _missing(hosts: tuple[str, ...], status: JobStatus) -> list[str]:
    """Hosts whose fault has no line."""
    said = [f"{each.severity}: {each.line}" for each in status.preflight.findings]
    return [host for host in hosts if host != _SOUND and not any(EXPECTED[host] in line for line in said)]


def _job(hosts: tuple[str, ...], *, ipv6: bool) -> int:
    network = Network((STORE, DAEMONS[0], DRIVER, *hosts), IPV6 if ipv6 else IPV4)
    logs = Path("build/hosts", time.strftime("%d-%H%M%S"), "logs").resolve()
    world = PlantedWorld(Chosen(ipv6=ipv6), network, logs, slots=hosts)

    def known() -> JobStatus | None:
        status = world.status()
        return None if status is None or _missing(hosts, status) else status

    with world.planted():
        world.start()
        starting = world.start_slots()
        next(starting)
        with network.refused(_NO_STORE, STORE) if _NO_STORE in hosts else ExitStack():
            next(starting, None)
            status = until(known, "each fault has a line", PATIENCE_S)
    print(*lines(status.preflight), sep="\n")
    print(f"the job: {status.outcome or status.condition}: {status.error or status.condition_reason}\n", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        if not is_inside():
            enter([sys.executable, "-m", "tests.hosts.planted", *sys.argv[1:]])
        return _job(JOBS[given.job], ipv6=given.ipv6)
    why = why_forbidden()
    if why:
        print(f"planted: not run, {why}")
        return 0
    again = [sys.executable, "-m", "tests.hosts.planted", *sys.argv[1:]]
    return max(subprocess.run([*again, "--job", str(number)]).returncode for number in range(len(JOBS)))


if __name__ == "__main__":
    sys.exit(main())
