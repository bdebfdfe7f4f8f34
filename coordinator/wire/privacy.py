"""Decision whether a connection is encrypted: a policy is a function of the peer's address. Pure."""

from collections.abc import Callable
from typing import Any

from barrier_runtime.state.hosts import is_loopback

Policy = Callable[[Any], bool]  # takes an address as `socket.getpeername` returns it, or None


def across_hosts(peer: Any) -> bool:
    """Encrypts every connection, except those of a loopback address."""
    return not peer or not is_loopback(str(peer[0]))


def never(peer: Any) -> bool:
    """Encrypts nothing: the operator trusts the network (`insecure_network_ok`)."""
    return False
