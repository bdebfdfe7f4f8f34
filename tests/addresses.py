"""Loopback addresses of this machine, for tests of addresses other than 127.0.0.1."""

import socket


def _can_listen(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:  # a container without IPv6
        return False
    return True


LOOPBACKS = ("127.0.0.2", *(host for host in ("::1",) if _can_listen(host)))
