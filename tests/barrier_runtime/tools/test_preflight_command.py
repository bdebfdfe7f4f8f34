"""`barrier-runtime preflight` with slots in processes: the matrix, planted faults, and no files left."""

import itertools
import os
from pathlib import Path

import pytest
from command_line import run_here
from coordinator_world import Coordinator

from barrier_runtime.coordinator.wire.messages import Probed, SlotFacts
from barrier_runtime.coordinator.wire.preflight import HostFacts, Preflight
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.tools.preflight import completed, lines, preflight

APP = """
from barrier_runtime import Dataflow, JsonlSink

flow = Dataflow("orders", checkpoints="jobs", slot_timeout=300, resource_wait_timeout=3_600)
flow.rate("orders", 10).sink("out", JsonlSink("out"))
"""


def test_matrix_has_a_row_per_host_and_ranges_of_slots():
    known = HostFacts("worker-a", "10.0.0.1", (0, 1, 2, 5), {"Python": "3.11.4", "pyarrow": "21.0.0"}, -62_000)
    found = Preflight(True, (known, HostFacts("worker-b", "10.0.0.2", (3, 4))))
    head, first, second = lines(found)
    assert head.split()[:3] == ["host", "address", "slots"]
    assert first.split("  ")[0] == "worker-a"
    assert "0-2, 5" in first
    assert "-62.0 s" in first
    assert "3-4" in second
    assert second.count("unknown") == 7


def test_slots_that_never_answer_end_the_wait_with_what_is_known():
    coordinator = Coordinator(MemoryStore()).begin()
    slots = [coordinator.slot(index) for index in range(2)]
    for each in slots:
        each.facts = SlotFacts(1_000, 1_024, 50 << 30, "/local")
    now_s = itertools.count(0, 50)
    begun = coordinator.status
    coordinator.run_with(*slots)
    slots[0].say(Probed("", 5))
    looks = itertools.chain([begun] * 9, itertools.repeat(coordinator.status))
    found = completed(lambda: next(looks), lambda _: None, lambda: float(next(now_s)))
    assert next(now_s) == 200, "no time counts before all slots have registered"
    assert [host.slots for host in found.hosts] == [(0, 1)]
    assert any("from slots: 1:" in line for line in lines(found))


@pytest.mark.slow
def test_command_prints_hosts_runs_nothing_and_leaves_no_job(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP)
    done = run_here("preflight", "app.py:flow", "--local", "--processes", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "preflight: 2 slots can work together" in done.stdout
    assert "all" in done.stdout.splitlines()[1]
    assert not (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path / "jobs") if name.startswith(("preflight", "orders"))] == []


@pytest.mark.slow
def test_a_folder_given_as_a_path_is_left_clean_too(tmp_path: Path):
    assert preflight(None, {"checkpoints": tmp_path, "resource_wait_timeout": 3_600}, processes=1).complete
    assert list(tmp_path.glob("preflight-*")) == []


@pytest.mark.slow
def test_slots_that_cannot_connect_to_each_other_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BARRIER_RUNTIME_SLOT_HOST", "127.0.0.77")  # nobody listens there
    monkeypatch.setenv("BARRIER_RUNTIME_SLOT_BIND", "127.0.0.1")
    (tmp_path / "app.py").write_text(APP)
    done = run_here("preflight", "app.py:flow", "--local", "--processes", "2", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "(127.0.0.77) cannot connect to slot" in done.stdout
    assert "slot_ports=" in done.stdout


def test_a_preflight_without_a_slot_is_refused(tmp_path: Path):
    done = run_here("preflight", "--local", "--processes", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "starts no slot" in done.stderr


def test_processes_need_local(tmp_path: Path):
    done = run_here("preflight", "--processes", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "--local and --processes belong together" in done.stderr
