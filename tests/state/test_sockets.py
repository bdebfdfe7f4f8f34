"""Options of sockets between hosts."""

import contextlib
import socket
import sys

import pytest

from barrier_runtime.state.sockets import end_when_unanswered

_RTO_MAX_MS = 44  # of Linux 6.15 and later


def longest_pause_ms(sock: socket.socket) -> int | None:
    """Longest pause before lost data are sent again; None if this kernel has no such option."""
    with contextlib.suppress(OSError):
        return sock.getsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS)
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
def test_lost_data_are_sent_again_every_second_until_the_connection_ends() -> None:
    with socket.socket() as plain, socket.socket() as sock:
        end_when_unanswered(sock, 10_000)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if longest_pause_ms(plain) is not None:
            assert longest_pause_ms(sock) == 1_000
