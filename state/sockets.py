"""Sockets between hosts."""

import contextlib
import socket
import sys
from typing import Any

from barrier_runtime.state.hosts import bare

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
