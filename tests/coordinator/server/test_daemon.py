"""The real process: ports, tokens, kill -9, SIGSTOP, and slots that speak the real protocol over TCP."""

import asyncio
import errno
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil
import pytest
from coordinator_world import log_of, options, spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.private_directory import coordinators_here
from barrier_runtime.coordinator.server import daemon
from barrier_runtime.coordinator.wire import handshake
from barrier_runtime.coordinator.wire.codec import encode
from barrier_runtime.coordinator.wire.handshake import MAX_HANDSHAKE_BYTES, HandshakeFailed
from barrier_runtime.coordinator.wire.messages import (
    CancelGeneration,
    CheckpointComplete,
    Deploy,
    Heartbeat,
    Registered,
    Shutdown,
    Start,
    Trigger,
)
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.open import open_store
from tests.addresses import LOOPBACKS
from tests.waiting import until

JOB = spec(checkpoints=options(interval_ms=50), resume_timeout_ms=10_000)


def records(url):
    return [type(record).__name__.upper() for record in log_of_url(url)]


def log_of_url(url):
    store = open_store(url)
    store.keys = lambda: tuple(sorted(info.key for info in store.list("")))
    return log_of(store)


@pytest.fixture
def embedded(tmp_path):
    with EmbeddedCoordinator(str(tmp_path / "store")) as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """One coordinator for all attacks, which must leave it unharmed; attacks with a job use separate jobs."""
    with EmbeddedCoordinator(str(tmp_path_factory.mktemp("attacked") / "store")) as coordinator:
        yield coordinator
        assert coordinator.restarts == 0


def running_slots(coordinator, job=JOB):
    secret = bytes.fromhex(coordinator.submit(job).secret)
    slots = [TcpSlot(job.job, job.run_id, secret, index).connect(coordinator.control_address) for index in (0, 1)]
    for slot in slots:
        slot.until(Deploy)
    for slot in slots:
        slot.until(Start)
    return slots


def until_closed(slot):
    """Returns all messages to the slot before the connection ends."""
    heard = []
    while True:
        try:
            heard.append(slot.receive())
        except ConnectionError:
            return heard


def one_checkpoint(slots):
    numbers = []
    for slot in slots:
        numbers.append(slot.until(Trigger).checkpoint)
        slot.ack(numbers[-1])
    for slot in slots:
        while slot.until(CheckpointComplete).checkpoint < numbers[0]:
            pass
        slot.commit(numbers[0])
    return numbers[0]


def reconnect(slots, address):
    for slot in slots:
        slot.close()
    for slot in slots:
        slot.connect(address)


# ---------------------------------------------------------------- life


@pytest.mark.slow
def test_a_killed_coordinator_is_back_on_its_address_and_the_generation_goes_on(embedded, tmp_path):
    """F6, G7: kill -9; the slots reconnect, LEAD, checkpoints resume, no FENCE."""
    slots = running_slots(embedded)
    last = one_checkpoint(slots)
    for round in range(2):
        pid, address = embedded.pid, embedded.control_address
        os.kill(pid, signal.SIGKILL)
        reconnect(slots, address)
        assert slots[0].until(Registered).last_completed >= last
        last, before = one_checkpoint(slots), last
        assert last > before
        until(lambda round=round: embedded.restarts > round, "the restart is counted")
        assert embedded.restarts == round + 1
        assert embedded.pid != pid
        takeover = embedded.client.status("flights").takeovers[-1]
        assert takeover.ended == f"process {pid} died of SIGKILL"
        assert takeover.away_ms is not None
    assert records(str(tmp_path / "store")).count("FENCE") == 1
    assert not any(isinstance(message, CancelGeneration) for message in slots[0].inbox)
    figures = embedded.client.status("flights").checkpoints
    assert figures.completed >= 2, "the counters go on"
    assert figures.completed == len(figures.history)
    embedded.client.stop("flights", "now")
    for slot in slots:
        assert slot.until(Shutdown).outcome == "cancelled"
    until(lambda: embedded.client.status("flights").outcome == "cancelled", "the outcome")


@pytest.mark.slow
def test_a_slots_connection_alone_lets_a_restarted_daemon_adopt_its_job(tmp_path):
    """F8: the job's description is in the log, the secret is derived."""
    with Daemon(tmp_path, "--lease", "0") as first:
        slots = running_slots(first)
        one_checkpoint(slots)
        first.kill()
    with Daemon(tmp_path, "--lease", "0") as second:
        reconnect(slots, second.control_address)
        one_checkpoint(slots)
        assert second.client.status("flights").phase == "running"
    assert records(str(tmp_path / "store")).count("LEAD") == 1


@pytest.mark.slow
def test_a_slot_of_a_run_that_was_taken_over_is_sent_home(tmp_path):
    with Daemon(tmp_path, "--lease", "0") as first:
        old = running_slots(first)
        running_slots(first, spec(run_id="run-2"))
        first.kill()
    with Daemon(tmp_path, "--lease", "0") as second:
        reconnect(old, second.control_address)
        farewell = old[0].until(Shutdown)
        assert farewell.outcome == "fenced"
        assert "taken over by generation 2" in farewell.reason


@pytest.mark.slow
def test_child_that_dies_before_its_answer_is_replaced_though_a_client_waits(embedded):
    """G7: killed twice in a row, the second time before the first answer."""
    slots = running_slots(embedded)
    last = one_checkpoint(slots)
    embedded.client._timeout_s = 3_600
    first = embedded.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: embedded.pid != first, "a second child")
    second = embedded.pid
    os.kill(second, signal.SIGSTOP)
    until(lambda: asked(urlsplit(embedded.url).port), "the job to be submitted again")
    os.kill(second, signal.SIGKILL)
    reconnect(slots, embedded.control_address)
    assert one_checkpoint(slots) > last
    assert embedded.restarts == 2


def asked(port):
    connections = psutil.Process().net_connections("tcp")
    return any(c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in connections)


def killed_and_back(embedded):
    embedded.wait_ready()
    first = embedded.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: embedded.restarts == 1, "a second child")
    embedded.wait_ready()
    return first


@pytest.mark.slow
def test_a_child_is_replaced_though_its_temporary_files_were_deleted(embedded):
    """As by systemd-tmpfiles or tmpreaper, which delete old files, and so the token of a job that runs for long."""
    embedded.wait_ready()
    shutil.rmtree(embedded._directory)
    killed_and_back(embedded)
    assert embedded.client.health().pid == embedded.pid
    assert embedded.url in [each.url for each in coordinators_here()]
    assert (embedded._directory / "driver.token").stat().st_mode & 0o777 == 0o600
    assert "REST at" in embedded.log_tail()


@pytest.mark.slow
def test_a_child_is_replaced_once_the_machine_has_processes_again(embedded, monkeypatch):
    start, refused = subprocess.Popen, []

    def popen(*arguments, **options):
        if not refused:
            refused.append(arguments)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(*arguments, **options)

    embedded.wait_ready()
    monkeypatch.setattr(subprocess, "Popen", popen)
    killed_and_back(embedded)
    assert refused
    embedded.ensure_alive()


def test_a_child_that_can_not_be_replaced_is_reported(embedded, monkeypatch):
    """A package was uninstalled meanwhile: nobody waits for a coordinator in vain."""
    embedded.wait_ready()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    os.kill(embedded.pid, signal.SIGKILL)
    until(lambda: embedded.error is not None, "the error")
    with pytest.raises(Unavailable, match="no new coordinator process can be started"):
        embedded.ensure_alive()


@pytest.mark.slow
def test_the_child_leaves_when_its_parent_does(tmp_path):
    program = (
        "import sys, time\n"
        "from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator\n"
        "c = EmbeddedCoordinator(sys.argv[1])\n"
        "c.wait_ready()\n"
        "print(c.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    until(lambda: not alive(child), "the child to leave")


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_closing_leaves_no_process_and_no_file(tmp_path):
    coordinator = EmbeddedCoordinator(str(tmp_path / "store"))
    coordinator.wait_ready()
    pid, directory = coordinator.pid, coordinator._directory
    assert (directory / "driver.token").stat().st_mode & 0o777 == 0o600
    coordinator.close()
    coordinator.close()
    assert not alive(pid)
    assert not directory.exists()


@pytest.mark.slow
def test_a_coordinator_that_can_not_start_says_why(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with EmbeddedCoordinator(str(tmp_path / "file")) as coordinator:
        with pytest.raises((Unavailable, InvalidJob)) as error:
            coordinator.submit(JOB)
        assert "file" in str(error.value)


# ---------------------------------------------------------------- a separate daemon


ROOT = Path(__file__).resolve().parents[3]


class Daemon:
    """`python -m barrier_runtime.coordinator.server.daemon` on a folder, on free loopback ports."""

    def __init__(self, folder, *arguments):
        self.token_file = folder / "operator.token"
        if not self.token_file.exists():
            self.token_file.write_text("5" * 64)
            self.token_file.chmod(0o600)
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.control_address = self.sockets[0].getsockname()
        self.client = CoordinatorClient(f"http://127.0.0.1:{self.sockets[1].getsockname()[1]}", "5" * 64)
        descriptors = [listening.fileno() for listening in self.sockets]
        self.log = (folder / f"daemon-{descriptors[0]}.log").open("w+b")
        command = [
            sys.executable,
            "-m",
            "barrier_runtime.coordinator.server.daemon",
            "--storage",
            str(folder / "store"),
        ]
        command += ["--token-file", str(self.token_file), "--control-fd", str(descriptors[0])]
        self._command = [*command, "--http-fd", str(descriptors[1]), "--log-format", "json", *arguments]
        self.start()

    def start(self):
        """Starts the daemon, at the same addresses each time."""
        descriptors = [listening.fileno() for listening in self.sockets]
        self.process = subprocess.Popen(self._command, stderr=self.log, pass_fds=descriptors, cwd=ROOT)

    def submit(self, job):
        def attempt():
            try:
                return self.client.submit(job)
            except Unavailable:
                return None

        return until(attempt, "the daemon to answer")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def vanish(self):
        """Kills the daemon and closes the addresses, as the death of the host does."""
        self.kill()
        for listening in self.sockets:
            listening.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.terminate()
            assert self.process.wait(timeout=240) in (0, -signal.SIGTERM)
        for listening in self.sockets:
            listening.close()
        self.log.close()


def refused_arguments(tmp_path, *arguments, mode=0o600, token="5" * 64):
    token_file = tmp_path / "t.token"
    token_file.write_text(token)
    token_file.chmod(mode)
    return ["--storage", str(tmp_path / "store"), "--token-file", str(token_file), *arguments]


def refused(*arguments, **token):
    """Returns the daemon's error for these arguments; runs in this process."""
    with pytest.raises(InvalidJob) as error:
        asyncio.run(daemon._run(daemon._parsed(refused_arguments(*arguments, **token))))
    return str(error.value)


def refused_by_the_process(*arguments):
    command = [sys.executable, "-m", "barrier_runtime.coordinator.server.daemon", *refused_arguments(*arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_rest_on_another_address_than_loopback_needs_the_operators_word(tmp_path):
    """G1."""
    said = refused(tmp_path, "--http", "0.0.0.0:0")
    assert "--http 0.0.0.0 is not a loopback address, and REST is not encrypted" in said
    assert "--insecure-network-ok" in said


def test_a_generated_certificate_needs_a_random_token(tmp_path):
    """H2"""
    said = refused(tmp_path, "--https", "generated", token="correct horse battery staple 2026".replace(" ", "-"))
    assert "--https generated needs a random token of 64 hex characters" in said
    assert "openssl rand -hex 32, or give a certificate with --https FILE" in said


def test_an_interface_that_is_missing_is_named_with_the_others(tmp_path, monkeypatch):
    def unknown(*arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = refused(tmp_path, "--listen", "eth7:0")
    assert "--listen eth7:" in said
    assert ": no such name, and the interfaces of this host are " in said


@pytest.mark.slow
def test_a_coordinator_that_does_not_come_up_is_reported_with_the_last_error(embedded):
    with pytest.raises(Unavailable, match=r"did not come up in time: no answer. Its log says:"):
        embedded._check_alive(Unavailable("no answer"), deadline=float("-inf"))


@pytest.mark.parametrize("host", ["0.0.0.0", *(["[::]"] if "::1" in LOOPBACKS else [])])
def test_every_interface_needs_an_address_that_others_connect_to(tmp_path, host):
    said = refused(tmp_path, "--listen", f"{host}:0")
    assert f"nobody can connect to {host.strip('[]')}, which means every interface of this host for --listen" in said
    assert "with --advertise HOST" in said
    said = refused(tmp_path, "--http", f"{host}:0", "--insecure-network-ok")
    assert "every interface of this host for --http" in said
    assert "with --advertise-http HOST" in said
    said = refused(tmp_path, "--advertise", f"{host}:7071")
    assert f"nobody can connect to {host.strip('[]')}" in said
    said = refused(tmp_path, "--advertise", "node-1:port")
    assert "--advertise 'node-1:port' is not understood ('port' is no port): use host or host:port" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("advertised", "address"),
    [("node-1:7071", ("node-1", 7071)), ("[fd78::3]:7071", ("fd78::3", 7071)), ("node-1", ("node-1", None))],
)
def test_slots_connect_to_the_advertised_address_of_a_daemon(tmp_path, advertised, address):
    with Daemon(tmp_path, "--advertise", advertised) as daemon:
        reply = daemon.submit(JOB)
        host, port = address
        assert (reply.control_host, reply.control_port) == (host, port or daemon.control_address[1])


def test_an_interface_or_network_without_an_address_here_is_refused(tmp_path):
    said = refused(tmp_path, "--listen", "203.0.113.0/24:0")
    assert "--listen='203.0.113.0/24': this host has no such address, only 127.0.0.1 (" in said
    assert "is no network" in refused(tmp_path, "--http", "10.0.0.0/99:7000-7009")
    assert "--listen='7100-7099' is no range of ports" in refused(tmp_path, "--listen", "127.0.0.1:7100-7099")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_an_address_that_somebody_uses_is_named_and_no_traceback_shown(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused_by_the_process(tmp_path, option, address)
    assert f"{option} {address}: Address already in use: choose another address" in said
    assert "Traceback" not in said


def test_a_token_file_that_others_can_read_is_refused(tmp_path):
    """G2."""
    assert "chmod 600" in refused(tmp_path, mode=0o644)


def test_a_short_token_is_refused(tmp_path):
    """G2."""
    said = refused(tmp_path, token="short-secret")
    assert "fewer than 32" in said
    assert "short-secret" not in said


def test_an_unknown_storage_is_refused_with_the_forms(tmp_path):
    assert "scheme" in refused(tmp_path, "--storage", "ftp://x/y")


@pytest.mark.slow
def test_a_terminated_daemon_leaves_the_jobs_and_the_store_alone(tmp_path):
    """F9: no exit path deletes anything or ends a job."""
    with Daemon(tmp_path) as daemon:
        slots = running_slots(daemon)
        one_checkpoint(slots)
        before = records(str(tmp_path / "store"))
        daemon.process.terminate()
        daemon.process.wait(timeout=240)
        said = until_closed(slots[0])
        assert not any(isinstance(message, Shutdown) for message in said)
    after = records(str(tmp_path / "store"))
    assert after[: len(before)] == before
    assert "FINISH" not in after


# ---------------------------------------------------------------- bad connections


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x04\x95" * 100,
        (MAX_HANDSHAKE_BYTES + 1).to_bytes(2, "big") + b"x" * 100,
        b"\x00\x04\xc1\xc1\xc1\xc1",
    ],
    ids=["http", "pickle", "oversized", "garbage"],
)
def test_bytes_that_are_no_handshake_close_the_connection(attacked, first):
    """B3, B4, H3."""
    attacked.wait_ready()
    with socket.create_connection(attacked.control_address, timeout=60) as connection:
        connection.sendall(first)
        if first.startswith(b"GET"):
            connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection) == b""
    assert attacked.client.health().status == "ok"


def read_to_end(connection):
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


@pytest.mark.slow
def test_a_half_open_handshake_is_closed_and_disturbs_nobody(tmp_path):
    """H3."""
    daemon = Daemon(tmp_path, "--handshake-timeout", "1")
    with daemon, socket.create_connection(daemon.control_address, timeout=60) as mute:
        mute.sendall(b"\x00")
        slots = running_slots(daemon)
        one_checkpoint(slots)
        assert read_to_end(mute) == b""


def test_a_slot_with_a_wrong_secret_gets_nowhere(attacked):
    """G7."""
    job = msgspec.structs.replace(JOB, job="wrong-secret")
    attacked.submit(job)
    impostor = TcpSlot(job.job, job.run_id, b"x" * 32, 0)
    with pytest.raises(Exception, match=r"secret|refused|reset"):
        impostor.connect(attacked.control_address, timeout_s=0.1)
    assert attacked.client.status(job.job).slots == ()


@pytest.mark.slow
def test_slot_with_another_python_is_refused_by_name_and_the_job_fails(embedded):
    secret = bytes.fromhex(embedded.submit(JOB).secret)
    slot = TcpSlot(JOB.job, JOB.run_id, secret, 1)
    slot.versions = {"Python": "3.5.1"}
    slot.connect(embedded.control_address)
    assert "slot 1 on host test has Python 3.5.1, the coordinator has 3." in slot.until(Shutdown).reason
    ended = until(lambda: failed(embedded), "the job to fail")
    assert f"job {JOB.job}: slot 1 on host test has Python 3.5.1" in ended.error


def failed(coordinator):
    status = coordinator.client.status(JOB.job)
    return status if status.outcome == "failed" else None


@pytest.mark.slow
def test_slot_of_another_protocol_is_refused_by_name_and_the_job_fails(embedded, monkeypatch):
    secret = bytes.fromhex(embedded.submit(JOB).secret)
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 1)
    slot = TcpSlot(JOB.job, JOB.run_id, secret, 0).connect(embedded.control_address)
    ended = until(lambda: failed(embedded), "the job to fail")
    slot.close()
    assert "slot 0 on host 127.0.0.1 has the protocol 1, the coordinator has 3" in ended.error
    assert "coordinator daemons the same release" in ended.error


def test_stranger_of_another_protocol_changes_nothing(attacked, monkeypatch):
    job = spec(job="other-protocol", checkpoints=options(interval_ms=50))
    first, _ = running_slots(attacked, job)
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 1)
    with pytest.raises(HandshakeFailed):
        TcpSlot(job.job, job.run_id, b"wrong" * 8, 0).connect(attacked.control_address)
    monkeypatch.undo()
    first.until(Trigger)
    assert attacked.client.status(job.job).outcome is None


@pytest.mark.slow
def test_a_slot_that_registers_as_another_is_cut_off(attacked):
    """G7: the registered identity must be the identity proven in the handshake."""
    job = msgspec.structs.replace(JOB, job="as-another")
    secret = bytes.fromhex(attacked.submit(job).secret)
    slot = TcpSlot(job.job, job.run_id, secret, 0)
    proven, slot.uuid = slot.uuid, "someone-else"
    original = slot.say

    def say(message):
        original(type(message)(**{**fields(message), "uuid": proven + "x"}))

    slot.say = say
    slot.connect(attacked.control_address)
    with pytest.raises(ConnectionError):
        slot.receive()
    assert attacked.client.status(job.job).slots == ()


def fields(message):
    return {name: getattr(message, name) for name in message.__struct_fields__}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bad mac", "pickle", "second frame is garbage", "sequence"])
def test_a_bad_frame_of_a_proven_slot_costs_it_the_connection_only(attacked, what):
    """B3, B4."""
    job = msgspec.structs.replace(JOB, job=what.replace(" ", "-"))
    slots = running_slots(attacked, job)
    bad = slots[0]
    good = bad._framing.frame(encode(Heartbeat(1)))
    if what == "bad mac":
        bad._socket.sendall(good[:-1] + bytes([good[-1] ^ 1]))
    elif what == "pickle":
        bad._socket.sendall(good + bad._framing.frame(b"\x01\x80\x04\x95pickle"))
    elif what == "sequence":
        bad._socket.sendall(good + good)
    else:
        bad._socket.sendall(good + b"\xff" * 64)
    until_closed(bad)
    bad.connect(attacked.control_address)
    bad.until(Registered)
    assert one_checkpoint(slots) > 0
    assert attacked.client.status(job.job).recoveries[-1].token == 1
    for slot in slots:
        slot.close()


@pytest.mark.slow
def test_many_silent_connections_do_not_keep_slots_out_for_long(tmp_path):
    """H3: a bounded number of places before authentication, each for a few seconds."""
    with Daemon(tmp_path, "--handshake-timeout", "1") as daemon:
        crowd = [socket.create_connection(daemon.control_address, timeout=60) for _ in range(300)]
        slots = running_slots(daemon)
        assert one_checkpoint(slots) > 0
        for connection in crowd:
            connection.close()


@pytest.mark.slow
def test_the_log_of_a_daemon_holds_no_secret(tmp_path):
    """J6."""
    with Daemon(tmp_path) as daemon:
        secret = daemon.submit(JOB).secret
        slots = running_slots(daemon)
        one_checkpoint(slots)
        daemon.log.flush()
        text = Path(daemon.log.name).read_text()
    assert "flights" in text
    assert secret not in text
    assert "5" * 64 not in text
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert secret.encode() not in stored
    assert b"5" * 64 not in stored


@pytest.mark.slow
def test_submissions_from_many_threads_are_one_job(embedded):
    """G6."""
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(embedded.submit(JOB))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({reply.secret for reply in replies}) == 1
    assert len(embedded.client.jobs()) == 1


@pytest.mark.slow
def test_a_client_names_what_is_wrong():
    with pytest.raises(InvalidJob, match="http://<host>"):
        CoordinatorClient("ftp://x", "t")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        client = CoordinatorClient(f"http://127.0.0.1:{closed.getsockname()[1]}", "t", timeout_s=1)
        with pytest.raises(Unavailable, match="does not answer"):
            client.health()
