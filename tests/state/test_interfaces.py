"""An address of this host, chosen by interface or network."""

import ipaddress
import socket

import pytest

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.sockets import Interface, address_of, chosen, interfaces, unheard

HERE = [
    Interface(name, ipaddress.ip_address(address))
    for name, address in [
        ("lo", "127.0.0.1"),
        ("eth0", "fd78::3"),
        ("eth0", "192.168.7.3"),
        ("eth0", "192.168.7.4"),
        ("eth1", "10.1.2.3"),
        ("ib0", "fd99::9"),
    ]
]


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("eth0", "192.168.7.3"),
        ("eth1", "10.1.2.3"),
        ("ib0", "fd99::9"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.1.2.99/24", "10.1.2.3"),
        ("192.168.7.4/32", "192.168.7.4"),
        ("fd00::/8", "fd78::3"),
        ("fd99::/16", "fd99::9"),
    ],
)
def test_an_interface_or_network_names_an_address(given: str, address: str) -> None:
    assert chosen(given, "coordinator_host", HERE) == address


def test_a_network_without_an_address_of_this_host_names_the_addresses() -> None:
    with pytest.raises(InvalidJob, match=r"slot_host='172.16.0.0/12': .* only 127.0.0.1 \(lo\), .*: name one of these"):
        chosen("172.16.0.0/12", "slot_host", HERE)
    with pytest.raises(InvalidJob, match=r"'10\.0\.0\.0/99' is no network"):
        chosen("10.0.0.0/99", "slot_host", HERE)


def test_addresses_of_this_host_are_those_of_the_kernel() -> None:
    loopback = {each.name for each in interfaces() if each.address == ipaddress.ip_address("127.0.0.1")}
    assert len(loopback) == 1
    assert loopback <= {name for _, name in socket.if_nameindex()}
    assert address_of(loopback.pop(), "coordinator_host") == "127.0.0.1"
    assert address_of("127.0.0.0/8", "coordinator_host") == "127.0.0.1"


@pytest.mark.parametrize("given", ["node-1", "10.0.0.7", "fd78::3", "[fd78::3]", "0.0.0.0", ""])
def test_names_and_addresses_stay(given: str) -> None:
    assert address_of(given, "coordinator_host") == given.strip("[]")


def test_an_address_needs_no_list_and_a_name_survives_a_host_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse() -> list[tuple[int, str]]:
        asked.append("the kernel")
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "if_nameindex", refuse)
    assert [address_of(given, "slot_host") for given in ("", "10.0.0.7", "[fd78::3]")] == ["", "10.0.0.7", "fd78::3"]
    assert asked == []
    assert address_of("node-1", "slot_host") == "node-1"
    assert "interfaces of this host are not known" in unheard(socket.gaierror(socket.EAI_NONAME, "Name not known"))


def test_an_unknown_name_is_refused_with_the_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    said = unheard(socket.gaierror(socket.EAI_NONAME, "Name not known"))
    assert said == "Name not known, and the interfaces of this host are lo, eth0"
    assert unheard(PermissionError(13, "Permission denied")) == "Permission denied"
