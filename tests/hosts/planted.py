"""Preflight of a job whose hosts have six planted faults, a fault per host; prints the matrix.

    python -m tests.hosts.planted [--ipv6]

Exits with 0 only if each fault has a line that names the host, the program ended by the slots of other versions, and no
record was written; also, with one line, on a machine without namespaces.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.tools.preflight import lines
from tests.hosts.namespaces import IPV4, IPV6, PRIVATE, Network, enter, is_inside, mount_full, why_forbidden
from tests.hosts.world import DAEMONS, DRIVER, PATIENCE_S, STORE, Chosen, World
from tests.waiting import until

_SOUND, _PYTHON, _PYARROW, _FIREWALL, _CLOCK, _DISK, _NO_STORE = HOSTS = (
    "sound",
    "python",
    "pyarrow",
    "firewall",
    "clock",
    "disk",
    "no-store",
)
_LAST = (_PYTHON, _PYARROW)  # the preflight does not wait for other slots after a refused one
_PORTS = "7200-7209"
EXPECTED = {
    _PYTHON: "has Python 3.99.1, the coordinator has",
    _PYARROW: "has pyarrow 999.0.0, the coordinator has",
    _FIREWALL: "no answer for 4 s: open the ports",
    _CLOCK: "is 600 s behind the coordinator's",
    _DISK: "has 0 MiB free in",
    _NO_STORE: "cannot use the checkpoint store",
}


@dataclass
class PlantedWorld(World):
    slots: tuple[str, ...] = HOSTS

    def start(self) -> None:
        """Starts all slots at once, those of other versions last."""
        for folder in (self.logs, self.target, PRIVATE / "local"):
            folder.mkdir(parents=True, exist_ok=True)
        self._token().write_text("0123456789abcdef" * 4)
        self._token().chmod(0o600)
        self._start_store()
        self._start_daemon(DAEMONS[0])
        until(lambda: self._answers(DAEMONS[0]), "the daemon answers", PATIENCE_S)
        self._start_driver()
        until(lambda: self.status() or self._check(), "the job is known", PATIENCE_S)
        for host in HOSTS:
            if host not in _LAST:
                self._start_slot(HOSTS.index(host), host)
        until(lambda: self._registered() == set(HOSTS) - set(_LAST), "all other slots have registered", PATIENCE_S)
        for host in _LAST:
            self._start_slot(HOSTS.index(host), host)

    def _registered(self) -> set[str]:
        status = self.status()
        return set() if status is None else {HOSTS[slot] for each in status.preflight.hosts for slot in each.slots}

    def _options(self) -> dict[str, str]:
        return {"--slot-ports": _PORTS}

    def _environment_of(self, host: str) -> dict[str, str]:
        if host == _NO_STORE:
            return {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
        versions = {_PYTHON: "Python=3.99.1", _PYARROW: "pyarrow=999.0.0"}
        return {"HOSTS_VERSIONS": versions.get(host, "")}

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The faults of hosts beside those of the environment."""
        mount_full(PRIVATE / "local" / _DISK)
        with ExitStack() as faults:
            faults.enter_context(self.network.closed(_FIREWALL, _PORTS))
            faults.enter_context(self.skewed(_CLOCK, -600))
            yield


def _missing(status: JobStatus) -> list[str]:
    """Hosts whose fault has no line."""
    said = [f"{each.severity}: {each.line}" for each in status.preflight.findings]
    return [host for host, text in EXPECTED.items() if not any(text in line for line in said)]


def _whole(world: PlantedWorld) -> JobStatus | None:
    status = world.status()
    return status if status is not None and status.outcome is not None and not _missing(status) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ipv6", action="store_true")
    given = parser.parse_args()
    if not is_inside():
        why = why_forbidden()
        if why:
            print(f"planted: not run, {why}")
            return 0
        enter([sys.executable, "-m", "tests.hosts.planted", *sys.argv[1:]])
    family = IPV6 if given.ipv6 else IPV4
    network = Network((STORE, DAEMONS[0], DRIVER, *HOSTS), family)
    logs = Path("build/hosts", time.strftime("%d-%H%M%S"), "logs").resolve()
    world = PlantedWorld(Chosen(ipv6=given.ipv6), network, logs)
    with world.planted():
        world.start()
        try:
            status = until(lambda: _whole(world), "the job has ended, and each fault has a line", 120)
        except AssertionError as error:
            print(error)
            status = world.status()
    assert status is not None, "no coordinator answers"
    print(*lines(status.preflight), sep="\n")
    print(f"outcome {status.outcome}: {status.error}; generations {status.generations}, token {status.token}")
    missing = _missing(status)
    if missing:
        print(f"no line for: {', '.join(missing)}")
    return 1 if missing or status.outcome != "failed" or status.token is not None else 0


if __name__ == "__main__":
    sys.exit(main())
