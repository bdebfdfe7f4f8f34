"""Addresses of the coordinator for the slots of a job on Spark: chosen from options and Spark's settings. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from barrier_runtime.coordinator.option_types import OptionValues
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.hosts import bare, is_every_interface, is_loopback

LOOPBACK = "127.0.0.1"
_REMEDY = "give coordinator_host= an address of this host that the executors reach, or leave coordinator_host= out"
_LOCAL = re.compile(r"local(\[.*\]|-cluster\[.*\])?")
_OF_STANDALONE = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d+)?")


@dataclass(frozen=True)
class CoordinatorPlace:
    """`host`: slots connect there. `bind`: the coordinator listens there."""

    host: str
    bind: str

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.host) and is_loopback(self.bind)


def is_one_host(master: str) -> bool:
    """True for masters that start their executors themselves, on the driver's host."""
    return _LOCAL.fullmatch(master.strip()) is not None


def is_local(master: str) -> bool:
    """True if all executors of a Spark master are on the driver's host, as far as the master's URL shows."""
    scheme, _, hosts = master.strip().partition("://")
    if is_one_host(master):
        return True
    found = [_OF_STANDALONE.fullmatch(each.strip()) for each in hosts.split(",")]
    return scheme == "spark" and all(each is not None and is_loopback(each[1]) for each in found)


def place_of_coordinator(options: OptionValues, master: str, conf: Mapping[str, str]) -> CoordinatorPlace:
    """Returns the addresses of the program's own coordinator. `conf`: Spark's settings, of the session if it is made.

    Raises `InvalidJob` for addresses that the executors of `master` cannot connect to."""
    host, said = options.coordinator_host, "coordinator_host"
    bind = options.coordinator_bind
    if host is None and is_local(master):
        host = LOOPBACK
    elif host is None:
        host, said = conf.get("spark.driver.host", ""), "spark.driver.host"
        bind = bind or conf.get("spark.driver.bindAddress")
    host = bare(host)
    if is_every_interface(host):
        raise InvalidJob(
            f"{said}={host!r} means every interface of this host, and nobody can connect there: name in "
            f"coordinator_host= the address that the executors reach, and give coordinator_bind={host!r} to listen on "
            "every interface"
        )
    if is_loopback(host) and not is_local(master):
        raise InvalidJob(
            f"{said}={host!r} is a loopback address, and executors of the Spark master {master} on other hosts would "
            f"look for the coordinator on their own host: {_REMEDY}"
        )
    return CoordinatorPlace(host, bare(bind or host))


def check_before_session(options: OptionValues, master: str) -> None:
    """Raises `InvalidJob` for addresses that are wrong whatever session is made."""
    given = "spark.driver.host" in options.spark_conf
    if options.coordinator_host is not None or given or is_local(master):
        place_of_coordinator(options, master, options.spark_conf)


def check_daemon(url: str, control_host: str, master: str) -> None:
    """Raises `InvalidJob` if a daemon tells slots on other hosts to connect to a loopback address."""
    if is_loopback(control_host) and not is_local(master):
        raise InvalidJob(
            f"the coordinator at {url} tells slots to connect to {control_host}, a loopback address, and executors of "
            f"the Spark master {master} on other hosts would look for the coordinator on their own host: start the "
            "daemon with --listen HOST:PORT, an address that the executors reach, or with --advertise HOST"
        )


def check_bound(place: CoordinatorPlace, bound: str, master: str) -> None:
    """Raises `InvalidJob` if the coordinator's host name is loopback on its own host, as in many /etc/hosts."""
    if place.host == place.bind and is_loopback(bound) and not is_local(master):
        raise InvalidJob(
            f"the coordinator's host {place.host!r} is {bound} on this host, a loopback address, and executors of the "
            f"Spark master {master} on other hosts would not reach the coordinator: give coordinator_host= an address "
            "of this host, or give coordinator_bind='0.0.0.0' if the executors know the name by another address"
        )


_CLOSURE_ENCRYPTED = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def check_closures_encrypted(options: OptionValues, master: str, conf: Mapping[str, str], *, on_loopback: bool) -> None:
    """Raises `InvalidJob` if Spark would send the job's secret, which is in the closure, unencrypted to other hosts.

    `conf`: settings of the session. Spark encrypts with `spark.network.crypto.enabled` only where it authenticates.
    `on_loopback`: slots connect to the coordinator at a loopback address. Workers of other hosts can register at a
    `spark://` master with a loopback address, and could use the secret at a coordinator that they reach."""
    if options.insecure_network_ok or is_one_host(master) or (on_loopback and is_local(master)):
        return
    authenticates = _is_on(conf, "spark.authenticate")
    crypto, tls = (_is_on(conf, name) for name in _CLOSURE_ENCRYPTED)
    if tls or (crypto and authenticates):
        return
    remedy = (
        "set spark.authenticate too: Spark encrypts only connections that are authenticated"
        if crypto
        else f"set {_CLOSURE_ENCRYPTED[0]} (with spark.authenticate) or {_CLOSURE_ENCRYPTED[1]}"
    )
    raise InvalidJob(
        f"Spark at {master} sends the job's code and secret unencrypted to executors on other hosts: {remedy}, in "
        "spark_conf= or spark-defaults.conf, or confirm with insecure_network_ok=True that the network is trusted"
    )


def _is_on(conf: Mapping[str, str], name: str) -> bool:
    return conf.get(name, "false").strip().lower() == "true"
