"""Encryption toward peers, and limits of log lines that strangers cause."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from barrier_runtime.state.hosts import is_loopback

Policy = Callable[[Any], bool]  # takes an address as `socket.getpeername` returns it, or None


def across_hosts(peer: Any) -> bool:
    return not peer or not is_loopback(str(peer[0]))


def never(peer: Any) -> bool:
    """The operator trusts the network (`insecure_network_ok`)."""
    return False


LINES = 10
PER_S = 60.0


@dataclass
class LineLimit:
    """Allows `LINES` lines per `PER_S` seconds."""

    _period_s: float = float("-inf")
    _lines: int = 0
    _left_out: int = 0  # since the last line

    def left_out_before(self, now_s: float) -> int | None:
        """Lines left out before this line; None: leave out this line too."""
        if now_s - self._period_s >= PER_S:
            self._period_s, self._lines = now_s, 0
        if self._lines == LINES:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out

    def line(self, peer: object, reason: str, now_s: float) -> str | None:
        left_out = self.left_out_before(now_s)
        if left_out is None:
            return None
        more = f" (and {left_out} more such connections before)" if left_out else ""
        return f"connection from {peer} closed: {reason}{more}"
