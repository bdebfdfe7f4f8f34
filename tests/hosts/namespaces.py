"""Hosts made of network namespaces: a bridge as the switch, a link and an address for each host.

Everything is made inside a network, mount and process namespace of its own (`enter`), which the kernel removes with all
processes, links, sockets and files when the run ends or is killed. So a run never needs to clean up, and several runs
do not see each other.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

INSIDE = "BARRIER_RUNTIME_HOSTS"  # set within the namespaces
PRIVATE = Path("/run")  # a file system in memory, seen by this run alone
_OF_ROOT = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_OF_USERS = (*_OF_ROOT, "--user", "--map-root-user")
_TOOLS = ("ip", "tc", "nft", "nsenter", "unshare")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_ALL_THAT_A_RUN_NEEDS = f"""
mount -t tmpfs hosts {PRIVATE}
ip netns add tried
ip link add switch type bridge forward_delay 0
ip link add to-tried type veth peer name eth0 netns tried
ip link set to-tried master switch up
tc qdisc add dev to-tried root tbf rate 1mbit burst 16kb latency 200ms
nft add table inet tried
nft 'add chain inet tried lost {{ type filter hook input priority 0; }}'
"""
_SWITCH = "switch"
_TO_NAME = str.maketrans(" ./:-", "_____")


@dataclass(frozen=True)
class Family:
    """Addresses of a network. `packets`: nft's word for their packets."""

    packets: str
    written: str  # with a host's number
    bits: int
    flags: tuple[str, ...] = ()

    def address(self, number: int) -> str:
        return self.written.format(number)

    @property
    def subnet(self) -> str:
        return f"{self.address(0)}/{self.bits}"


IPV4 = Family("ip", "10.79.0.{}", 24)
IPV6 = Family("ip6", "fd79::{:x}", 64, ("nodad",))  # usable at once


def why_forbidden() -> str:
    """Returns why this machine cannot make hosts, in one line; "" if the machine can."""
    if sys.platform != "linux":
        return f"network namespaces exist on Linux only, this is {sys.platform}"
    missing = [tool for tool in _TOOLS if not any(Path(folder, tool).exists() for folder in _PATH.split(os.pathsep))]
    if missing:
        return f"{', '.join(missing)} missing: run .ci/hosts as root"
    tried = [*_unshare(), "sh", "-ec", _ALL_THAT_A_RUN_NEEDS]
    done = subprocess.run(tried, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"this machine forbids network namespaces ({said})"


def enter(command: Sequence[str]) -> None:
    """Replaces this process by `command` in new namespaces. Never returns."""
    whole = [*_unshare(), *command]
    os.execvpe(whole[0], whole, {**_environment(), INSIDE: "1"})


def is_inside() -> bool:
    return INSIDE in os.environ


def _unshare() -> tuple[str, ...]:
    return _OF_ROOT if os.geteuid() == 0 else _OF_USERS


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _PATH}


class Network:
    """Named hosts on one switch. Only for a process inside (`enter`). Faults are contexts: the end heals."""

    def __init__(self, hosts: Sequence[str], family: Family = IPV4) -> None:
        _run("mount", "-t", "tmpfs", "hosts", str(PRIVATE))
        self._family = family
        self._addresses = {host: family.address(number) for number, host in enumerate(hosts, start=2)}
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", _SWITCH, "type", "bridge", "forward_delay", "0")
        _run("ip", "address", "add", *self._assigned(family.address(1), _SWITCH))
        _run("ip", "link", "set", _SWITCH, "up")
        for host, address in self._addresses.items():
            self._connect(host, address)

    def address(self, host: str) -> str:
        return self._addresses[host]

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """Command line that runs `command` on `host`."""
        return ["nsenter", f"--net={PRIVATE}/netns/{host}", *command]

    @contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """Pulls the cable of `host`."""
        _run("ip", "link", "set", _port(host), "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", _port(host), "up")

    @contextmanager
    def deaf(self, host: str) -> Iterator[None]:
        """Loses all packets to `host`."""
        with self._lost(host, "input", f"{self._family.packets} saddr {self._family.subnet}"):
            yield

    @contextmanager
    def mute(self, host: str) -> Iterator[None]:
        """Loses all packets from `host`."""
        with self._lost(host, "output", f"{self._family.packets} daddr {self._family.subnet}"):
            yield

    @contextmanager
    def one_way(self, sender: str, receiver: str) -> Iterator[None]:
        """Loses the packets from `sender` to `receiver`."""
        with self._lost(sender, "output", f"{self._family.packets} daddr {self._addresses[receiver]}"):
            yield

    @contextmanager
    def apart(self, one: str, other: str) -> Iterator[None]:
        """Loses the packets between two hosts, in both directions."""
        with self.one_way(one, other), self.one_way(other, one):
            yield

    @contextmanager
    def closed(self, host: str, ports: str) -> Iterator[None]:
        """Loses the packets to TCP ports of `host`, as a firewall does."""
        with self._lost(host, "input", f"tcp dport {ports}"):
            yield

    @contextmanager
    def refused(self, sender: str, receiver: str) -> Iterator[None]:
        """Resets connections from `sender` to `receiver`."""
        packets = f"{self._family.packets} daddr {self._addresses[receiver]} meta l4proto tcp"
        with self._lost(sender, "output", packets, "reject with tcp reset"):
            yield

    @contextmanager
    def narrow(self, host: str, rate: str) -> Iterator[None]:
        """Limits the bandwidth of `host`, in each direction, for example to `1mbit`."""
        shape: Callable[[str, str], list[str]] = lambda verb, device: ["tc", "qdisc", verb, "dev", device, "root"]  # noqa: E731
        limit = ["tbf", "rate", rate, "burst", "16kb", "latency", "200ms"]
        _run(*shape("add", _port(host)), *limit)
        _run(*self.command(host, [*shape("add", "eth0"), *limit]))
        try:
            yield
        finally:
            _run(*shape("del", _port(host)))
            _run(*self.command(host, shape("del", "eth0")))

    def _connect(self, host: str, address: str) -> None:
        _run("ip", "netns", "add", host)
        _run("ip", "link", "add", _port(host), "type", "veth", "peer", "name", "eth0", "netns", host)
        _run("ip", "link", "set", _port(host), "master", _SWITCH, "up")
        _run("ip", "-n", host, "address", "add", *self._assigned(address, "eth0"))
        for device in ("lo", "eth0"):
            _run("ip", "-n", host, "link", "set", device, "up")

    def _assigned(self, address: str, device: str) -> list[str]:
        return [f"{address}/{self._family.bits}", "dev", device, *self._family.flags]

    @contextmanager
    def _lost(self, host: str, hook: str, packets: str, verdict: str = "drop") -> Iterator[None]:
        table = f"inet lost_{hook}_{packets.translate(_TO_NAME)}"
        chain = f"chain lost {{ type filter hook {hook} priority 0; {packets} {verdict}; }};"
        nft = self.command(host, ["nft", "-f", "-"])
        _run(*nft, given=f"table {table} {{ {chain} }}\n")
        try:
            yield
        finally:
            _run(*nft, given=f"delete table {table}\n")


def mount_full(folder: Path) -> None:
    """Mounts a disk without a free byte. Only for a process inside (`enter`)."""
    folder.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", "size=64k", "full", str(folder))
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1024))


def _port(host: str) -> str:
    return f"to-{host}"


def _run(*command: str, given: str = "") -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
