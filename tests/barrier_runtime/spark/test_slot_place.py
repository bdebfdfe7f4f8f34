"""Address and ports of a slot, from options and the host's environment."""

import asyncio
import socket
from pathlib import Path

import pytest

from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.spark.task import SlotPlace, slot_facts, slot_place
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.sockets import ANY_PORT, PortRange


def own_address() -> str:
    return "10.0.0.7"


def test_a_slot_listens_on_the_network_of_the_coordinator():
    assert slot_place(SlotOptions(), {}, own_address) == SlotPlace("10.0.0.7", "10.0.0.7", ANY_PORT)


def test_values_of_the_host_win():
    environment = {
        "BARRIER_RUNTIME_SLOT_HOST": "[fd78::3]",
        "BARRIER_RUNTIME_SLOT_BIND": "::",
        "BARRIER_RUNTIME_SLOT_PORTS": "7300-7301",
    }
    place = slot_place(SlotOptions(slot_ports="7200-7299"), environment, own_address)
    assert place == SlotPlace("fd78::3", "::", PortRange(7300, 7301))
    assert slot_place(SlotOptions(slot_ports="7200-7299"), {}, own_address).ports == PortRange(7200, 7299)


def test_a_network_chooses_the_address_on_each_host():
    assert slot_place(SlotOptions(slot_host="127.0.0.0/8"), {}, own_address).host == "127.0.0.1"
    environment = {"BARRIER_RUNTIME_SLOT_HOST": "node-1", "BARRIER_RUNTIME_SLOT_BIND": "127.0.0.0/8"}
    assert slot_place(SlotOptions(slot_host="10.0.0.0/8"), environment, own_address) == SlotPlace(
        "node-1", "127.0.0.1", ANY_PORT
    )
    with pytest.raises(InvalidJob, match=r"slot_host='203\.0\.113\.0/24': this host has no such address"):
        slot_place(SlotOptions(slot_host="203.0.113.0/24"), {}, own_address)


def test_the_address_for_others_is_one_that_they_can_connect_to():
    with pytest.raises(InvalidJob, match=r"BARRIER_RUNTIME_SLOT_HOST=0\.0\.0\.0 means every interface"):
        slot_place(SlotOptions(), {"BARRIER_RUNTIME_SLOT_HOST": "0.0.0.0"}, own_address)
    with pytest.raises(InvalidJob, match="BARRIER_RUNTIME_SLOT_PORTS='all' is no range"):
        slot_place(SlotOptions(), {"BARRIER_RUNTIME_SLOT_PORTS": "all"}, own_address)


async def test_a_slot_takes_the_first_free_port_of_its_range():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plane = TcpDataPlane(b"secret", "job", "run", "127.0.0.1", 10.0, PortRange(port, port))
        with pytest.raises(Unavailable, match=f"all ports {port} of 127.0.0.1 are in use: give slot_ports"):
            await plane.listen()
        wide = TcpDataPlane(b"secret", "job", "run", "127.0.0.1", 10.0, PortRange(port, 65_535))
        try:
            _, chosen = await asyncio.wait_for(wide.listen(), 30)
        finally:
            wide.close()
    assert port < chosen <= 65_535


def test_a_slot_registers_without_facts_when_its_disk_cannot_be_asked(tmp_path: Path) -> None:
    assert slot_facts(tmp_path / "local" / "gone") is None
    facts = slot_facts(tmp_path)
    assert facts is not None
    assert facts.folder == str(tmp_path.parent)
