"""Hosts as texts, and this host's address towards another."""

import socket

import pytest

from barrier_runtime.state.hosts import is_every_interface, is_loopback, shown, split
from barrier_runtime.state.sockets import listening_on, own_address_towards
from tests.addresses import LOOPBACKS


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_loopback_hosts(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "fd78::3", "node-1", "", "0.0.0.0", "::"])
def test_hosts_that_are_not_loopback(host):
    assert not is_loopback(host)


def test_addresses_of_every_interface():
    assert [is_every_interface(host) for host in ("0.0.0.0", "::", "[::]", "::1", "node-1")] == [True] * 3 + [False] * 2


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("node-1:7071", ("node-1", 7071)),
        ("node-1", ("node-1", None)),
        ("[fd78::3]:7071", ("fd78::3", 7071)),
        ("[fd78::3]", ("fd78::3", None)),
    ],
)
def test_host_and_port_are_split_and_joined(address, parts):
    assert split(address) == parts
    if parts[1] is not None:
        assert shown(*parts) == address


@pytest.mark.parametrize("address", [":7071", "node-1:port", "node-1:70000", ""])
def test_text_without_host_or_with_a_wrong_port_is_refused(address):
    with pytest.raises(ValueError, match=r"host is missing|no port"):
        split(address)


@pytest.mark.parametrize("host", LOOPBACKS)
def test_own_address_towards_a_listening_address_reaches_it(host):
    with listening_on(host, 0) as listening:
        port = listening.getsockname()[1]
        own = own_address_towards(host, port)
        assert is_loopback(own)
        with socket.create_connection((host, port), source_address=(own, 0), timeout=60) as connection:
            assert connection.getpeername()[:2] == (host, port)
