"""Addresses of this host, chosen by the name of an interface or by a network: `eth0`, `10.0.0.0/8`."""

import ctypes
import ipaddress
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.hosts import bare
from barrier_runtime.state.libc import libc

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
