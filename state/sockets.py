"""Options of sockets between hosts: the kernel ends a connection whose other host does not answer."""

import socket

_OPTIONS = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")  # macOS lacks some
_PROBES = 3


def end_when_unanswered(sock: socket.socket | None, timeout_ms: int) -> None:
    """Sets the options so that an unanswered connection ends after `timeout_ms`, with or without unsent data.

    Does nothing without a socket, in a simulated network.
    """
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    between_s = max(1, timeout_ms // 1000 // (_PROBES + 1))
    for name, value in zip(_OPTIONS, (timeout_ms, between_s, between_s, _PROBES), strict=True):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
