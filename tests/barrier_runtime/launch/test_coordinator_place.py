"""Addresses that executors on other hosts cannot reach are refused before anything starts, with the remedy."""

import socket
from pathlib import Path
from typing import Any

import pytest
from coordinator_world import spec

from barrier_runtime import CollectSink, Dataflow, InvalidJob
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.launch.coordinator_of_job import (
    CoordinatorOfJob,
    CoordinatorPlace,
    check_bound,
    check_closures_encrypted,
    is_local,
    place_of_coordinator,
)
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.sockets import PortRange

FAR = "spark://far:7077"
NEAR = "spark://localhost:7077"
DRIVER = {"spark.driver.host": "10.0.0.7"}


def refused(tmp_path: Path, kind: type[Exception] = InvalidJob, **options: Any) -> str:
    """The error of a run; no Spark session was made, because Spark would not find these masters."""
    flow = Dataflow("placed")
    flow.rate("numbers", 1e6, 10).sink("out", CollectSink())
    with pytest.raises(kind) as error:
        flow.run(**{"master": FAR, "checkpoints": str(tmp_path / "checkpoints")} | options)
    return str(error.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost"])
def test_loopback_address_for_executors_on_other_hosts_is_refused(tmp_path: Path, host: str) -> None:
    said = refused(tmp_path, coordinator_host=host)
    assert "is a loopback address, and executors of the Spark master spark://far:7077" in said
    assert (
        "give coordinator_host= an address of this host that the executors reach, or leave coordinator_host= out"
        in said
    )


def test_loopback_driver_host_of_the_settings_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, spark_conf={"spark.driver.host": "127.0.0.1"})
    assert said.startswith("spark.driver.host='127.0.0.1' is a loopback address")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
@pytest.mark.parametrize("master", [FAR, "local[2]"])
def test_every_interface_is_no_address_to_connect_to(tmp_path: Path, host: str, master: str) -> None:
    said = refused(tmp_path, coordinator_host=host, master=master)
    assert "means every interface of this host, and nobody can connect there" in said
    assert f"give coordinator_bind='{host.strip('[]')}' to listen on every interface" in said


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kind"), [(socket.EAI_NONAME, InvalidJob), (socket.EAI_AGAIN, Unavailable)])
def test_a_name_that_this_host_does_not_know_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(number, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = refused(tmp_path, kind, coordinator_host="eth7")
    assert said.startswith("nobody can listen on coordinator_host='eth7' (")
    assert "interfaces of this host are" in said
    assert "coordinator_bind=" in said


def test_coordinator_takes_a_free_port_of_its_range(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidJob, match=f"all ports {port} of 127.0.0.1 are in use: give coordinator_ports"):
            EmbeddedCoordinator(str(tmp_path / "one"), ports=PortRange(port, port))
        with EmbeddedCoordinator(str(tmp_path / "many"), ports=PortRange(port, 65_535)) as coordinator:
            assert coordinator.control_address[1] > port
    assert "coordinator_ports='7100 to 7109' is no range of ports" in refused(
        tmp_path, coordinator_ports="7100 to 7109"
    )


@pytest.mark.slow
def test_daemon_on_loopback_is_refused_for_executors_on_other_hosts(tmp_path: Path) -> None:
    checkpoints = str(tmp_path / "checkpoints")
    with EmbeddedCoordinator(checkpoints) as daemon:
        daemon.wait_ready(60)
        said = refused(tmp_path, coordinator=daemon.url, token_file=daemon._token_file, checkpoints=checkpoints)
        assert daemon.client.jobs() == []
    assert f"the coordinator at {daemon.url} tells slots to connect to 127.0.0.1, a loopback address" in said
    assert "start the daemon with --listen HOST:PORT" in said
    assert "or with --advertise HOST" in said


@pytest.mark.parametrize(
    "master",
    ["local", "local[4]", "local[*, 3]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://[::1]:7077"],
)
def test_coordinator_for_executors_on_this_host_listens_on_loopback(master: str) -> None:
    assert is_local(master)
    assert place_of_coordinator(JobOptions(), master, DRIVER) == CoordinatorPlace("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("master", [FAR, "spark://127.0.0.1:7077,far:7077", "yarn", "k8s://https://api:443"])
def test_coordinator_for_other_hosts_has_the_address_of_the_driver(master: str) -> None:
    assert not is_local(master)
    assert place_of_coordinator(JobOptions(), master, DRIVER) == CoordinatorPlace("10.0.0.7", "10.0.0.7")


def test_coordinator_binds_as_the_driver_unless_an_option_differs() -> None:
    conf = {"spark.driver.host": "[fd78::3]", "spark.driver.bindAddress": "::"}
    assert place_of_coordinator(JobOptions(), FAR, conf) == CoordinatorPlace("fd78::3", "::")
    given = JobOptions(coordinator_bind="10.1.0.7")
    assert place_of_coordinator(given, FAR, conf) == CoordinatorPlace("fd78::3", "10.1.0.7")
    given = JobOptions(coordinator_host="node-1")
    assert place_of_coordinator(given, FAR, conf) == CoordinatorPlace("node-1", "node-1")


def test_host_name_that_is_loopback_on_its_own_host_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"'node-1' is 127\.0\.1\.1 on this host.*give coordinator_bind='0\.0\.0\.0'"):
        check_bound(CoordinatorPlace("node-1", "node-1"), "127.0.1.1", FAR)
    check_bound(CoordinatorPlace("node-1", "0.0.0.0"), "0.0.0.0", FAR)


ENCRYPTED = [
    {"spark.network.crypto.enabled": "true", "spark.authenticate": "true"},
    {"spark.ssl.rpc.enabled": "TRUE"},
]


def test_spark_that_sends_the_secret_unencrypted_is_refused() -> None:
    with pytest.raises(InvalidJob) as error:
        check_closures_encrypted(JobOptions(), FAR, {}, on_loopback=False)
    said = str(error.value)
    assert "set spark.network.crypto.enabled (with spark.authenticate) or spark.ssl.rpc.enabled" in said
    assert "insecure_network_ok=True" in said


def test_crypto_of_spark_without_authentication_is_refused() -> None:
    """Spark ignores the setting then."""
    with pytest.raises(InvalidJob, match=r"set spark\.authenticate too"):
        check_closures_encrypted(JobOptions(), FAR, {"spark.network.crypto.enabled": "true"}, on_loopback=False)


@pytest.mark.parametrize("conf", ENCRYPTED)
def test_spark_that_encrypts_needs_no_confirmation(conf: dict[str, str]) -> None:
    check_closures_encrypted(JobOptions(), FAR, conf, on_loopback=False)


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077"])
def test_executors_on_this_host_need_no_encryption(master: str) -> None:
    check_closures_encrypted(JobOptions(), master, {}, on_loopback=True)


@pytest.mark.parametrize("options", [{"coordinator_host": "10.0.0.7"}, {"coordinator_bind": "0.0.0.0"}])
def test_master_on_loopback_is_no_proof_that_workers_are_on_this_host(tmp_path: Path, options: dict[str, str]) -> None:
    """Workers of other hosts can register at such a master, for example through a tunnel."""
    flow = Dataflow("placed")
    flow.rate("numbers", 1e6, 10).sink("out", CollectSink())
    given = JobOptions(master=NEAR, checkpoints=str(tmp_path), **options)
    with pytest.raises(
        InvalidJob, match=r"Spark at spark://localhost:7077 sends the job's code and secret unencrypted"
    ):
        CoordinatorOfJob(spec(), given)


@pytest.mark.slow
def test_daemon_that_other_hosts_reach_needs_encryption_for_every_cluster(tmp_path: Path) -> None:
    checkpoints = str(tmp_path / "checkpoints")
    with EmbeddedCoordinator(checkpoints, advertise="10.0.0.7") as daemon:
        daemon.wait_ready(60)
        given = JobOptions(
            master=NEAR, checkpoints=checkpoints, coordinator=daemon.url, token_file=str(daemon._token_file)
        )
        with pytest.raises(InvalidJob, match="unencrypted to executors on other hosts"):
            CoordinatorOfJob(spec(), given)
        assert daemon.client.jobs() == []
    check_closures_encrypted(JobOptions(), "local[2]", {}, on_loopback=False)


def test_trusted_network_needs_no_encryption() -> None:
    check_closures_encrypted(JobOptions(insecure_network_ok=True), FAR, {}, on_loopback=False)
