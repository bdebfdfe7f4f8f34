"""Address and ports on which a slot listens for other slots, from options and the environment of the host. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.hosts import bare, is_every_interface
from barrier_runtime.state.ports import PortRange, port_range

HOST, BIND = "BARRIER_RUNTIME_SLOT_HOST", "BARRIER_RUNTIME_SLOT_BIND"
PORTS = OPTIONS["slot_ports"].variable


@dataclass(frozen=True)
class SlotPlace:
    """`host`: other slots connect there. `bind`: the slot listens there, on a port of `ports`."""

    host: str
    bind: str
    ports: PortRange


def slot_place(options: SlotOptions, environment: Mapping[str, str], own_address: Callable[[], str]) -> SlotPlace:
    """Returns the place of a slot. `own_address()`: the host's address on the network of the coordinator.

    `environment` has values of the executor's host, which take precedence over the options of the job."""
    host = bare(environment.get(HOST, ""))
    if host and is_every_interface(host):
        raise InvalidJob(
            f"{HOST}={host} means every interface of the host, and nobody can connect there: name in {HOST} the "
            f"address that other executors reach, and set {BIND}={host} to listen on every interface"
        )
    host = host or own_address()
    if PORTS in environment:
        ports = port_range(environment[PORTS], PORTS)
    else:
        ports = port_range(options.slot_ports, "slot_ports")
    return SlotPlace(host, bare(environment.get(BIND, "")) or host, ports)
