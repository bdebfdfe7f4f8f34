"""Several daemons on one storage: one leads, the others stand by. Real processes, real TCP, kill -9, SIGSTOP."""

import os
import signal
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from coordinator_world import spec, started
from tcp_slot import TcpSlot
from test_daemon import JOB, Daemon, log_of_url, one_checkpoint, records, refused, running_slots, until_closed

from barrier_runtime.coordinator.client.client import FailoverClient, LedByAnother, UnknownJob
from barrier_runtime.coordinator.client.rest_token import daemon_key
from barrier_runtime.coordinator.log.lease import Holder, decode_lease
from barrier_runtime.coordinator.server import leases as leases_module
from barrier_runtime.coordinator.server.jobs import JobDirectory, NotHere
from barrier_runtime.coordinator.server.leases import Leases
from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.coordinator.wire.handshake import job_secret
from barrier_runtime.coordinator.wire.messages import (
    CancelGeneration,
    Deploy,
    Registered,
    Shutdown,
    Start,
    Trigger,
    TryElsewhere,
)
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.paths import Paths
from tests.waiting import until

LEASE = ("--lease", "0.5")
PATHS = Paths("flights")


@pytest.fixture
def daemons(tmp_path):
    """A standby takes over half a second after the leader's last sign of life."""
    yield from two_daemons(tmp_path, *LEASE)


@pytest.fixture
def unhurried_daemons(tmp_path):
    """For tests in which none takes over, however slow the machine is."""
    yield from two_daemons(tmp_path, "--lease", "3000")


def two_daemons(folder, *arguments):
    with Daemon(folder, *arguments) as first, Daemon(folder, *arguments) as second:
        for daemon in (first, second):
            until(lambda daemon=daemon: answers(daemon), "the daemon to answer")
        yield first, second


def answers(daemon):
    try:
        return daemon.client.health()
    except Unavailable:
        return None


def all_of(*daemons):
    return FailoverClient([daemon.client.url for daemon in daemons], "5" * 64)


def addresses(*daemons):
    return [daemon.control_address for daemon in daemons]


def find_leader(slots, *daemons):
    """Lets every slot search for the daemon that serves it; returns the addresses found."""
    for slot in slots:
        slot.close()
    return {slot.seek(addresses(*daemons)) for slot in slots}


def lease_of(folder):
    key = PATHS.lease
    try:
        return decode_lease(key, (folder / "store" / key).read_bytes())
    except FileNotFoundError:
        return None


def history_of(folder):
    return decode_history(PATHS.history, (folder / "store" / PATHS.history).read_bytes())


def led_by(folder, daemon):
    """Returns the current lease if this daemon holds it, else None."""
    host, port = daemon.control_address
    found = lease_of(folder)
    return found if found is not None and found.control == f"{host}:{port}" and not found.released else None


@pytest.mark.slow
def test_a_slot_that_lost_its_connection_is_sent_back_to_the_healthy_leader(unhurried_daemons, tmp_path):
    """F6: a standby fences nobody; the generation and the coordinator stay the same."""
    leader, standby = unhurried_daemons
    slots = running_slots(leader, msgspec.structs.replace(JOB, reconnect_grace_ms=20_000))
    until(lambda: led_by(tmp_path, leader), "the lease")
    last = one_checkpoint(slots)
    for _ in range(5):
        slots[0].close()
        assert slots[0].seek(addresses(standby, leader)) == leader.control_address
    assert f"is led by daemon {leader.control_address[0]}:{leader.control_address[1]}" in slots[0].told[0]
    assert one_checkpoint(slots) > last
    assert records(str(tmp_path / "store")).count("FENCE") == 1
    assert "LEAD" not in records(str(tmp_path / "store"))


@pytest.mark.slow
def test_a_killed_leader_is_followed_by_the_standby_in_the_same_generation(daemons, tmp_path):
    """F6, F8, F9: no FENCE, no CancelGeneration: the generation, counters and history continue."""
    leader, standby = daemons
    slots = running_slots(leader)
    for _ in range(3):
        last = one_checkpoint(slots)
    until(lambda: led_by(tmp_path, leader), "the lease")
    until(lambda: history_of(tmp_path).completed >= 3, "the history")
    before = history_of(tmp_path)
    leader.vanish()
    assert find_leader(slots, leader, standby) == {standby.control_address}
    assert one_checkpoint(slots) > last
    assert records(str(tmp_path / "store")).count("FENCE") == 1
    assert not any(isinstance(message, CancelGeneration) for slot in slots for message in slot.inbox)
    until(lambda: led_by(tmp_path, standby), "the standby's lease")
    client = all_of(leader, standby)
    status = client.status("flights", "run-1")
    assert status.phase == "running"
    assert status.checkpoints.completed > before.completed
    known = client.checkpoints("flights").history  # with the subtasks of each, which a job's status leaves out
    packed = tuple(
        msgspec.structs.replace(each, phases=b"") for each in before.history
    )  # their times are told unpacked
    assert known[: len(before.history)] == packed
    numbers = [each.checkpoint for each in status.checkpoints.history]
    assert all(earlier < later for earlier, later in pairwise(numbers)), "each once, in order"
    assert status.generations == 1


@pytest.mark.slow
def test_a_leader_that_is_terminated_gives_its_lease_back(tmp_path):
    """F9: the standby need not wait for the end of the term, which exceeds the test's timeout."""
    with Daemon(tmp_path, "--lease", "3000") as leader, Daemon(tmp_path, "--lease", "3000") as standby:
        slots = running_slots(leader)
        one_checkpoint(slots)
        until(lambda: led_by(tmp_path, leader), "the lease")
        leader.process.terminate()
        assert leader.process.wait(timeout=120) == 0
        assert lease_of(tmp_path).released
        assert find_leader(slots, standby) == {standby.control_address}
        one_checkpoint(slots)
    assert records(str(tmp_path / "store")).count("FENCE") == 1


@pytest.mark.slow
def test_daemon_restarted_at_its_address_takes_its_own_job_back_at_once(tmp_path):
    with Daemon(tmp_path, "--lease", "3000") as daemon:
        slots = running_slots(daemon)
        last = one_checkpoint(slots)
        until(lambda: led_by(tmp_path, daemon), "the lease")
        daemon.kill()
        daemon.start()
        find_leader(slots, daemon)
        assert one_checkpoint(slots) > last
    assert records(str(tmp_path / "store")).count("FENCE") == 1


@pytest.mark.slow
def test_a_stopped_leader_that_wakes_up_is_ended_by_the_log_and_says_who_leads(daemons, tmp_path):
    """F6, Z8: SIGSTOP, the standby takes over, SIGCONT: one log, no fork, the slots stay where they are."""
    zombie, successor = daemons
    slots = running_slots(zombie)
    last = one_checkpoint(slots)
    until(lambda: led_by(tmp_path, zombie), "the lease")
    os.kill(zombie.process.pid, signal.SIGSTOP)
    assert find_leader(slots, successor) == {successor.control_address}
    after = one_checkpoint(slots)
    assert after > last
    os.kill(zombie.process.pid, signal.SIGCONT)
    third = one_checkpoint(slots)
    assert third > after
    said = until(lambda: stopped_by_the_log(zombie), "the zombie to stop")
    assert f"leads job flights now with generation {slots[0].token}" in said
    with pytest.raises(LedByAnother, match="is led by daemon") as error:
        zombie.client.status("flights", "run-1")
    assert error.value.url == successor.client.url
    assert one_checkpoint(slots) > third
    assert led_by(tmp_path, successor), "the zombie did not take the lease back"
    log_of_url(str(tmp_path / "store"))


def stopped_by_the_log(daemon, times=1):
    lines = Path(daemon.log.name).read_text().splitlines()
    said = [line for line in lines if "job flights: replaced: " in line]
    return said[-1] if len(said) >= times else None


@pytest.mark.slow
def test_a_job_goes_back_and_forth_between_daemons(daemons, tmp_path):
    """F6: a daemon that was replaced once can lead the same run again."""
    slots = running_slots(daemons[0])
    last, leader = one_checkpoint(slots), daemons[0]
    for times in range(3):
        successor = daemons[1] if leader is daemons[0] else daemons[0]
        until(lambda leader=leader: led_by(tmp_path, leader), "the lease")
        os.kill(leader.process.pid, signal.SIGSTOP)
        assert find_leader(slots, successor) == {successor.control_address}
        number = one_checkpoint(slots)
        assert number > last
        os.kill(leader.process.pid, signal.SIGCONT)
        until(lambda leader=leader, times=times: stopped_by_the_log(leader, times // 2 + 1), "the old leader to stop")
        last, leader = number, successor
    assert records(str(tmp_path / "store")).count("FENCE") == 1


@pytest.mark.slow
def test_a_leader_that_lost_all_its_slots_gives_way(daemons, tmp_path):
    """The leader lives, and can reach the store, but no slot can reach it."""
    leader, standby = daemons
    slots = running_slots(leader)
    last = one_checkpoint(slots)
    until(lambda: led_by(tmp_path, leader), "the lease")
    assert find_leader(slots, standby) == {standby.control_address}
    for kind in (Deploy, Start):  # the old leader had begun a generation without them
        for slot in slots:
            slot.until(kind)
    assert one_checkpoint(slots) > last
    client = all_of(leader, standby)  # the old leader answers for the run until it has read the log
    until(lambda: client.status("flights", "run-1").phase == "running", "the standby to be the one that answers")
    assert {slot.state for slot in client.status("flights", "run-1").slots} == {"running"}
    log_of_url(str(tmp_path / "store"))


@pytest.mark.slow
def test_another_run_of_the_job_may_be_submitted_to_any_daemon_and_fences_the_first(daemons, tmp_path):
    """F6: the lease protects a run from standbys, not a job from the user."""
    first, second = daemons
    old = running_slots(first)
    one_checkpoint(old)
    until(lambda: led_by(tmp_path, first), "the lease")
    new = running_slots(second, spec(run_id="run-2", checkpoints=JOB.checkpoints))
    one_checkpoint(new)
    until(lambda: led_by(tmp_path, second), "the lease of the new run")
    for slot in old:  # they still work, and their next checkpoint meets the log
        slot.ack(slot.until(Trigger).checkpoint)
    farewells = [message for message in until_closed(old[0]) if isinstance(message, Shutdown)]
    assert [farewell.outcome for farewell in farewells] == ["fenced"]
    assert first.client.status("flights", "run-1").outcome == "fenced"
    with pytest.raises(LedByAnother):
        first.client.status("flights")
    assert all_of(first, second).status("flights").run_id == "run-2"


@pytest.mark.slow
def test_new_slot_at_a_daemon_before_its_run_is_in_the_log_is_not_dismissed(unhurried_daemons):
    """A run unknown to a daemon may be about to start at another daemon."""
    first, second = unhurried_daemons
    running_slots(first)
    secret = job_secret(daemon_key("5" * 64), "flights", "run-2")
    early = TcpSlot("flights", "run-2", secret, 0).connect(second.control_address)
    answer = early.receive()
    assert isinstance(answer, TryElsewhere)
    assert "its driver has to submit it" in answer.reason


async def test_run_that_has_just_begun_elsewhere_is_not_taken_over_before_its_first_lease(store, monkeypatch):
    """The FENCE lands before the lease is written; a slot that asks a standby in between must not start a fight."""
    clock_ms = [1_000]
    monkeypatch.setattr(leases_module, "_now_ms", lambda: clock_ms[0])
    started(store)  # another daemon's generation 1, of which no lease tells
    leases = Leases(store, Holder("b", "b:1", "http://b", 400))
    directory = JobDirectory(store, daemon_key=b"k" * 32, leader="b", host="h", leases=leases)
    for passed_ms in (0, 399):
        clock_ms[0] = 1_000 + passed_ms
        answer = await directory.for_slot("flights", "run-1")
        assert isinstance(answer, NotHere)
        assert not answer.fenced
        assert "no lease names this run" in answer.reason
    clock_ms[0] = 1_400
    assert not isinstance(await directory.for_slot("flights", "run-1"), NotHere)
    await directory.close()


# ---------------------------------------------------------------- programs


@pytest.mark.slow
def test_the_client_finds_the_leader_wherever_it_is(unhurried_daemons, tmp_path):
    leader, standby = unhurried_daemons
    slots = running_slots(leader)
    one_checkpoint(slots)
    until(lambda: led_by(tmp_path, leader), "the lease")
    client = all_of(standby, leader)
    assert client.status("flights", "run-1").phase == "running"
    assert client.url == leader.client.url, "asked first from now on"
    assert client.trigger("flights", "run-1").answer == "accepted"
    client = all_of(standby, leader)
    assert client.submit(JOB).phase == "running", "the run that is led already"
    assert {daemon.control_port for daemon in client.daemons()} == {port for _, port in addresses(leader, standby)}
    with pytest.raises(UnknownJob, match="job nobody is not known"):
        client.status("nobody")
    client.stop("flights", "now", "run-1")
    for slot in slots:
        assert slot.until(Shutdown).outcome == "cancelled"


@pytest.mark.slow
def test_a_new_run_goes_to_a_daemon_that_answers(daemons, tmp_path):
    dead, living = daemons
    dead.vanish()
    client = all_of(dead, living)
    reply = client.submit(JOB)
    assert (reply.control_host, reply.control_port) == living.control_address
    assert client.url == living.client.url
    assert [daemon.control_port for daemon in client.daemons()] == [living.control_address[1]]


@pytest.mark.slow
def test_client_reports_no_answer_rather_than_an_unknown_job_while_nobody_leads(unhurried_daemons, tmp_path):
    leader, standby = unhurried_daemons
    slots = running_slots(leader)
    one_checkpoint(slots)
    until(lambda: led_by(tmp_path, leader), "the lease")
    leader.vanish()
    with pytest.raises(Unavailable):
        all_of(leader, standby).status("flights", "run-1")


@pytest.mark.slow
def test_a_run_that_ended_is_known_to_a_daemon_that_starts_later(tmp_path):
    """The log has no record of failed and cancelled runs."""
    with Daemon(tmp_path) as daemon:
        slots = running_slots(daemon)
        one_checkpoint(slots)
        daemon.client.stop("flights", "now", "run-1")
        for slot in slots:
            slot.until(Shutdown)
        until(lambda: history_of(tmp_path).outcome, "the outcome to be written")
    with Daemon(tmp_path) as later:
        status = until(lambda: answers(later) and later.client.status("flights", "run-1"), "the daemon")
        assert (status.outcome, status.phase) == ("cancelled", "cancelled")
        assert status.checkpoints.completed >= 1
        assert later.client.status("flights") == status


@pytest.mark.slow
def test_a_redirect_to_an_address_that_was_not_given_is_not_followed(unhurried_daemons, tmp_path):
    """G2: the token goes only where the user sends it."""
    leader, standby = unhurried_daemons
    slots = running_slots(leader)
    one_checkpoint(slots)
    until(lambda: led_by(tmp_path, leader), "the lease")
    with pytest.raises(LedByAnother):
        all_of(standby).status("flights", "run-1")


@pytest.mark.parametrize("lease", ["-1", "0.01", "100000", "nan"])
def test_a_lease_out_of_bounds_is_refused(tmp_path, lease):
    assert "give seconds from 0.1 to 3600, or 0 for none" in refused(tmp_path, "--lease", lease)


@pytest.mark.parametrize("timeout", ["-1", "0"])
def test_a_time_in_which_no_connection_could_prove_itself_is_refused(tmp_path, timeout):
    said = refused(tmp_path, "--handshake-timeout", timeout)
    assert f"--handshake-timeout {timeout}: give seconds from 0.1 to 3600" in said


def test_no_address_is_no_client():
    with pytest.raises(InvalidJob, match="no coordinator address"):
        FailoverClient([], "t")


@pytest.mark.slow
def test_slots_find_deploy_and_registered_after_seeking(unhurried_daemons):
    """What `seek` looks at is still there to be received."""
    leader, standby = unhurried_daemons
    secret = bytes.fromhex(leader.submit(JOB).secret)
    slots = [TcpSlot(JOB.job, JOB.run_id, secret, index) for index in (0, 1)]
    for slot in slots:
        slot.seek(addresses(leader, standby))
    for slot in slots:
        slot.until(Registered)
        slot.until(Deploy)
