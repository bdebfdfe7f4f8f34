"""Facts of hosts, what is wrong with them in one line, and the probe before a first start."""

from typing import Any

import msgspec
import pytest
from coordinator_world import Coordinator, FakeSlot

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.job import why_job
from barrier_runtime.coordinator.wire.messages import Probe, Probed, Register, SlotFacts
from barrier_runtime.coordinator.wire.preflight import SlotFound, preflight
from barrier_runtime.state.store.memory import MemoryStore

FACTS = SlotFacts(clock_ms=1_000, open_files=1_024, free_bytes=50 << 30, folder="/local")


def slot(index: int, facts: dict[str, Any] | None = None, clock_ms: int = 3, **probed: Any) -> SlotFound:
    """A slot on a host of its own; `facts`: other than `FACTS`."""
    known = msgspec.structs.replace(FACTS, **(facts or {}))
    address = f"10.0.0.{index}"
    register = Register(index, f"u{index}", 7, f"worker-{index}", 0, address, 7_200, 0, "idle", facts=known)
    return SlotFound(register, clock_ms, Probed(**{"store": "", "store_ms": 9, **probed}))


@pytest.mark.parametrize(
    ("planted", "parallelism", "line"),
    [
        (
            slot(1, clock_ms=-62_000),
            2,
            "warning: the clock of host worker-1 (10.0.0.1) is 62 s behind the coordinator's: synchronise the clocks",
        ),
        (
            slot(1, {"free_bytes": 0}),
            2,
            "error: host worker-1 (10.0.0.1) has 0 MiB free in /local, where slots keep state: free space there, or",
        ),
        (
            slot(1, {"free_bytes": 20 << 20}),
            2,
            "warning: host worker-1 (10.0.0.1) has 20 MiB free in /local, where slots keep state: free space there, or",
        ),
        (
            slot(1, store="Unavailable: s3://jobs does not answer"),
            2,
            "error: host worker-1 (10.0.0.1) cannot use the checkpoint store: Unavailable: s3://jobs does not answer: "
            "give that host",
        ),
        (
            slot(1, unreached={0: "no answer for 4 s"}),
            2,
            "error: slot 1 on host worker-1 (10.0.0.1) cannot connect to slot 0 on host worker-0 (10.0.0.0), port "
            "7200: no answer for 4 s: open the ports between these hosts (slot_ports= gives a fixed range)",
        ),
        (
            slot(1, {"open_files": 256}),
            64,
            "error: host worker-1 (10.0.0.1) allows 256 open files per process, and a slot of 64 needs 382: raise the",
        ),
    ],
)
def test_planted_fault_is_one_line_that_names_host_and_remedy(planted: SlotFound, parallelism: int, line: str):
    found = preflight([slot(0), planted], parallelism).findings
    said = [f"{each.severity}: {each.line}" for each in found]
    assert len(said) == 1
    assert said[0].startswith(line)


def test_hosts_without_a_fault_and_slots_of_earlier_releases_have_no_finding():
    old = slot(1)
    unknown = SlotFound(msgspec.structs.replace(old.register, facts=None))
    found = preflight([slot(0), unknown], 2)
    assert found.findings == ()
    assert found.complete, "a slot that brings no facts is not waited for"
    known, other = found.hosts
    assert (known.clock_ms, known.open_files, known.store, known.unreached) == (3, 1_024, "", ())
    assert (other.clock_ms, other.open_files, other.store, other.unreached) == (None, None, None, None)


def test_slots_of_a_host_share_a_row_and_a_line():
    first, second = slot(1, {"free_bytes": 0}), slot(2, {"free_bytes": 0})
    beside = msgspec.structs.replace(second.register, host=first.register.host, data_host=first.register.data_host)
    found = preflight([slot(0), first, SlotFound(beside, 3, second.probed)], 3)
    assert [host.slots for host in found.hosts] == [(0,), (1, 2)]
    assert len(found.findings) == 1


def test_errors_precede_warnings():
    found = preflight([slot(0, clock_ms=90_000), slot(1, store="no")], 2).findings
    assert [each.severity for each in found] == ["error", "warning"]


def beginning(*facts: SlotFacts | None) -> tuple[Coordinator, list[FakeSlot]]:
    coordinator = Coordinator(MemoryStore()).begin()
    slots = [coordinator.slot(index) for index in range(len(facts))]
    for each, known in zip(slots, facts, strict=True):
        each.facts = known
    return coordinator, slots


def test_slots_are_probed_once_before_a_first_start():
    coordinator, slots = beginning(FACTS, FACTS)
    coordinator.run_with(*slots)
    for each in slots:
        (probe,) = [message for message in each.inbox if isinstance(message, Probe)]
        assert [peer.slot for peer in probe.peers] == [0, 1]
    assert not coordinator.status.preflight.complete
    slots[0].say(Probed("", 5))
    slots[1].say(Probed("", 5, {0: "refused"}))
    status = coordinator.status
    assert status.preflight.complete
    assert "cannot connect to slot 0" in status.preflight.findings[0].text
    reasons = why_job(status, status.at_ms)
    assert reasons[0].cause == "preflight"
    assert "slot_ports=" in reasons[0].remedy
    slots[1].cut()
    coordinator.later(60_000)
    coordinator.settle()
    again = coordinator.slot(1, attempt=1)
    again.facts = FACTS
    again.connect()
    coordinator.settle()
    assert not [message for message in again.inbox if isinstance(message, Probe)]


def test_a_slot_whose_answer_was_lost_with_its_connection_is_probed_again():
    coordinator, slots = beginning(FACTS, FACTS)
    coordinator.run_with(*slots)
    slots[0].say(Probed("", 5))
    slots[1].cut()
    coordinator.settle()
    slots[1].connect()
    coordinator.settle()
    assert [len(each.got(Probe)) for each in slots] == [1, 2]
    assert coordinator.status.preflight.unanswered == (1,)
    slots[1].say(Probed("", 5))
    assert coordinator.status.preflight.complete
    slots[1].cut()
    coordinator.settle()
    slots[1].connect()
    coordinator.settle()
    assert len(slots[1].got(Probe)) == 2, "the preflight was complete"


def test_a_restarted_coordinator_probes_the_slots_that_it_took_over():
    coordinator, slots = beginning(FACTS, FACTS)
    coordinator.run_with(*slots)
    slots[0].say(Probed("", 5))
    new = Coordinator(coordinator.store, leader="leader-b", now_ms=2_000_000).begin().settle()
    for each in slots:
        each.coordinator = new
        each.connect()
    new.settle()
    assert new.phase == "running"
    assert new.status.preflight.unanswered == (0, 1)
    assert [len(each.got(Probe)) for each in slots] == [2, 2]
    slots[0].say(Probed("", 5))
    slots[1].say(Probed("", 5, {0: "refused"}))
    assert new.status.preflight.complete
    assert "cannot connect to slot 0" in new.status.preflight.findings[0].text


def test_a_process_that_replaces_a_slot_is_probed_and_reached_anew():
    coordinator, slots = beginning(FACTS, FACTS)
    coordinator.run_with(*slots)
    slots[0].say(Probed("", 5, {1: "refused"}))
    again = coordinator.slot(1, attempt=1)
    again.facts = FACTS
    coordinator.run_with(again, slots[0])
    assert [len(each.got(Probe)) for each in (slots[0], again)] == [2, 1]
    errors = [each for each in coordinator.status.preflight.findings if each.severity == "error"]
    assert errors == [], "the process that could not be reached has gone"
    slots[0].say(Probed("", 5))
    again.say(Probed("", 5))
    assert coordinator.status.preflight.complete


def test_slots_without_an_answer_are_named():
    silent = SlotFound(slot(1).register)
    found = preflight([slot(0), silent], 3).given_up([2], 120.0)
    assert not found.complete
    assert found.hosts[0].store == ""
    assert found.findings[0].line.startswith("no answer for 120 s from slots: 1, 2: see the executors' logs")


def test_slots_of_earlier_releases_get_no_probe():
    coordinator, slots = beginning(None, FACTS)
    coordinator.run_with(*slots)
    assert not [message for message in slots[0].inbox if isinstance(message, Probe)]
    assert [message for message in slots[1].inbox if isinstance(message, Probe)]


def test_status_of_an_earlier_release_has_an_empty_preflight():
    coordinator, slots = beginning(None, None)
    coordinator.run_with(*slots)
    stored = msgspec.to_builtins(coordinator.status)
    del stored["preflight"]
    assert not msgspec.convert(stored, JobStatus).preflight.complete


def test_refused_slot_has_a_row_with_its_versions_and_the_first_line():
    other = msgspec.structs.replace(slot(1).register, versions={"Python": "3.12.1", "pyarrow": "21.0.0"})
    why = "slot 1 on host worker-1 has Python 3.12.1, the coordinator has 3.11.4: give the executors the environment"
    found = preflight([slot(0), slot(2, store="no")], 3, [(other, why)])
    assert found.complete
    assert [(host.host, host.versions.get("Python")) for host in found.hosts][1] == ("worker-1", "3.12.1")
    assert found.findings[0].line == why
    assert len(found.findings) == 2


def test_a_host_that_nobody_reaches_is_one_line():
    found = preflight([slot(0), *(slot(n, unreached={0: "no answer for 4 s"}) for n in range(1, 64))], 64).findings
    assert [each.text for each in found] == [
        "slot 1 on host worker-1 (10.0.0.1) and slots on 62 other hosts cannot connect to slot 0 on host worker-0 "
        "(10.0.0.0), port 7200: no answer for 4 s"
    ]


def test_a_host_that_reaches_nobody_is_one_line():
    found = preflight([slot(0), slot(1), slot(2, unreached={0: "refused", 1: "refused"})], 3).findings
    assert [each.text for each in found] == [
        "slot 2 on host worker-2 (10.0.0.2) cannot connect to slot 0 on host worker-0 (10.0.0.0), port 7200, or to "
        "slots on 1 other host: refused"
    ]
