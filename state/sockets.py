"""Sockets between hosts: options, ranges of ports, addresses of interfaces."""

import contextlib
import ctypes
import ipaddress
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.hosts import bare
from barrier_runtime.state.libc import libc

_OPTIONS = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")  # macOS lacks some
_PROBES = 3
_RTO_MAX_MS = 44  # TCP_RTO_MAX_MS of Linux 6.15, which Python does not name yet
_REPEAT_MS = 1_000
_BACKLOG = 1_280  # more than a job has slots, which may all connect at once


def end_when_unanswered(sock: socket.socket | None, timeout_ms: int) -> None:
    """Ends an unanswered connection after `timeout_ms`, with or without unsent data.

    Until then lost data are sent again every second, so that a healed connection works at once; older kernels double
    the pauses. Does nothing without a socket, in a simulated network.
    """
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    between_s = max(1, timeout_ms // 1000 // (_PROBES + 1))
    for name, value in zip(_OPTIONS, (timeout_ms, between_s, between_s, _PROBES), strict=True):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an older kernel
            sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, _REPEAT_MS)


def listening_on(host: str, port: int, *, reuse: bool = False) -> socket.socket:
    """On IPv4 if the name has addresses of both kinds. Raises `OSError`."""
    family, kind, protocol, _, address = _found(host, port, socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if reuse:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def own_address_towards(host: str, port: int) -> str:
    """This host's address on the network that leads to `host`; loopback for a loopback address.

    Raises `OSError` if no route leads there."""
    error: OSError | None = None
    for family, kind, protocol, _, address in _found(host, port, socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # sends nothing
            except OSError as no_route:
                error = no_route
                continue
            return str(probe.getsockname()[0])
    raise error or OSError(f"{host} has no address")


_Found = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]


def _found(host: str, port: int, kind: socket.SocketKind) -> _Found:
    return sorted(socket.getaddrinfo(bare(host), port, type=kind), key=lambda each: each[0] != socket.AF_INET)


# Ranges of ports, such as 7200-7299: a process listens on the first free port of the range.

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_MOST = 65_535


@dataclass(frozen=True)
class PortRange:
    """Ports from `first` to `last`. 0: the system chooses."""

    first: int = 0
    last: int = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else f"{self.first}"


ANY_PORT = PortRange()


def port_range(text: str, said: str) -> PortRange:
    """Range of "7200-7299" or "7200"; "" is any port. `said`: the option, for messages."""
    if not text.strip():
        return ANY_PORT
    found = _RANGE.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= _MOST:
        raise InvalidJob(f"{said}={text!r} is no range of ports: give two ports from 1 to {_MOST}, such as 7200-7299")
    return PortRange(first, last)


# Addresses of this host, chosen by the name of an interface or by a network: `eth0`, `10.0.0.0/8`.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Interface:
    name: str
    address: Address


def address_of(given: str, said: str) -> str:
    """Returns this host's address for an address or host name (as given), an interface, or a network.

    `said`: the option, for messages. Raises `InvalidJob`.
    """
    host = bare(given.strip())
    if not host or _is_address(host):
        return host
    return chosen(host, said, interfaces()) if "/" in host or host in _names() else host


def unheard(error: OSError) -> str:
    """Describes `error`; for an unknown host name, also names the interfaces."""
    text = error.strerror or str(error)
    if not isinstance(error, socket.gaierror):
        return text
    return f"{text}, and the interfaces of this host are {', '.join(_names()) or 'not known'}"


def check_known(host: str, said: str, remedy: str) -> None:
    """Raises `InvalidJob` for a name that this host does not know, `Unavailable` without a name service."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise (Unavailable if error.errno == socket.EAI_AGAIN else InvalidJob)(
            f"nobody can listen on {said}={host!r} ({unheard(error)}): name one of these or an address, or {remedy}"
        ) from error


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _names() -> list[str]:
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


def chosen(given: str, said: str, interfaces: Sequence[Interface]) -> str:
    """The first IPv4 address, if any."""
    if "/" not in given:
        fitting = [each for each in interfaces if each.name == given]
    else:
        try:
            network = ipaddress.ip_network(given, strict=False)
        except ValueError as error:
            raise InvalidJob(f"{said}={given!r} is no network ({error}): give a network such as 10.0.0.0/8") from error
        fitting = [each for each in interfaces if each.address in network]
    if not fitting:
        others = ", ".join(f"{each.address} ({each.name})" for each in interfaces)
        raise InvalidJob(f"{said}={given!r}: this host has no such address, only {others or 'none'}: name one of these")
    return str(min(fitting, key=lambda each: each.address.version).address)


class _Entry(ctypes.Structure):  # struct ifaddrs; further fields are not read
    pass


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]
_LENGTHS = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}  # of sockaddr: begin and size of the address


def interfaces() -> list[Interface]:
    """Addresses in the kernel's order, without link-local addresses. Raises `OSError`."""
    library = libc()
    first = ctypes.POINTER(_Entry)()
    if library.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "the addresses of this host cannot be listed")
    try:
        return [each for each in _listed(first) if not each.address.is_link_local]
    finally:
        library.freeifaddrs(first)


def _listed(entry: "ctypes._Pointer[_Entry]") -> Iterator[Interface]:
    while entry:
        found = entry.contents
        if found.address:
            head = ctypes.string_at(found.address, 2)
            # BSD has a length before the family, both a byte.
            family = head[1] if sys.platform == "darwin" else int.from_bytes(head, sys.byteorder)
            if family in _LENGTHS:
                begin, size = _LENGTHS[socket.AddressFamily(family)]
                packed = ctypes.string_at(found.address + begin, size)
                yield Interface(found.name.decode(), ipaddress.ip_address(packed))
        entry = found.next
