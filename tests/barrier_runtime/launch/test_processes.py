"""Slots in processes of their own, without Spark: replaced, rescaled, joined from outside, and gone at the end."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, run_here

from barrier_runtime import Dataflow, InvalidJob, JsonlSink, committed_files
from barrier_runtime.connectors.files.sink.commit_log import jobs_and_sinks
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.requests import SavepointFailed
from barrier_runtime.state.store.open import open_store
from tests.waiting import until as until_within

APP = """
from barrier_runtime import Dataflow, JsonlSink

flow = Dataflow("apart")
flow.rate("ticks", 2_000, splits=4).select(["value"]).sink("out", JsonlSink({out!r}))
"""

FORGETS_TO_STORE = """
from barrier_runtime import Dataflow, ValueState


class Forgets:
    seen = ValueState(list[int], default_factory=list)

    def process(self, key, row, ctx):
        self.seen.value.append(row["value"])
        return row


flow = Dataflow("apart")
flow.rate("ticks", 1_000, 100).key_by("value").process("forgets", Forgets).sink("out", print)
"""

PATIENT: Any = {"resource_wait_timeout": 3_600, "slot_timeout": 300}  # on a slow machine, too
until = partial(until_within, patience_s=600)  # several programs start in turn


def flow_in(folder: Path) -> Dataflow:
    """The flow of `APP`, whose file is written too."""
    text = APP.format(out=str(folder / "out"))
    (folder / "app.py").write_text(text)
    names: dict[str, Any] = {}
    exec(text, names)
    flow = names["flow"]
    assert isinstance(flow, Dataflow)
    return flow


def start(folder: Path, processes: int, **options: Any) -> JobHandle:
    chosen = {"checkpoints": str(folder / "jobs"), "checkpoint_interval": 0.2, "ui": False, **PATIENT, **options}
    return flow_in(folder).start_local(processes=processes, **chosen)


def values_in(folder: Path) -> list[int]:
    files = [Path(url.removeprefix("file://")) for url in committed_files(str(folder / "out"))]
    return sorted(json.loads(line)["value"] for file in files for line in file.read_text().splitlines())


def has_commits(folder: Path) -> bool:
    out = folder / "out"
    return out.exists() and bool(jobs_and_sinks(open_store(str(out))))


def until_status(job: JobHandle, found: Any) -> JobStatus:
    until(lambda: found(job.status()) or job.done)
    assert not job.done, job
    return job.status()


def until_checkpoints(job: JobHandle, more: int) -> JobStatus:
    wanted = (job._last.checkpoints.completed if job._last is not None else 0) + more
    return until_status(job, lambda status: status.checkpoints.completed >= wanted)


def until_replaced(job: JobHandle, slot: int, killed: int) -> None:
    until_status(job, lambda status: status.phase == "running" and status.slots[slot].pid != killed)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; nobody may have waited for an orphan yet."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def each_once(values: list[int]) -> bool:
    """Whether each of the 4 splits, which stop at different rows, has all numbers once, from the first on."""
    splits = [[value // 4 for value in values if value % 4 == split] for split in range(4)]
    return len(values) > 100 and all(split == list(range(len(split))) for split in splits)


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    with start(tmp_path, 2) as job:
        status = until_checkpoints(job, 2)
        pids = {slot.pid for slot in status.slots}
        assert len(pids | {os.getpid()}) == 3
        killed = status.slots[0].pid
        os.kill(killed, signal.SIGKILL)
        until_replaced(job, 0, killed)
        until_checkpoints(job, 2)
        assert job.rescale(3, timeout=3_600).parallelism == 3
        pids |= {slot.pid for slot in until_checkpoints(job, 2).slots}
        assert len(pids) >= 4
    until(lambda: all(map(is_gone, pids)))
    assert job.status().outcome == "cancelled"
    assert each_once(values_in(tmp_path))


@pytest.mark.slow
def test_spare_takes_the_place_of_a_killed_slot_exactly_once(tmp_path: Path) -> None:
    with start(tmp_path, 2, spare_slots=1) as job:
        until_checkpoints(job, 2)
        pids = set[int]()
        for slot in (0, 0, 1):
            status = until_status(job, lambda status: status.phase == "running" and status.spares.ready == 1)
            pids |= {each.pid for each in status.slots}
            killed = status.slots[slot].pid
            os.kill(killed, signal.SIGKILL)
            until_replaced(job, slot, killed)
            until_checkpoints(job, 2)
        assert "a spare took the place of slot" in job.status().recoveries[-1].reason
        pids |= {each.pid for each in job.status().slots}
        assert len(pids) == 5
    until(lambda: all(map(is_gone, pids)))
    assert each_once(values_in(tmp_path))


@pytest.mark.slow
def test_a_run_in_processes_ends_with_its_input(tmp_path: Path) -> None:
    flow = Dataflow("bounded")
    rows = flow.rate("ticks", 1_000_000, 1_000).map(lambda row: {"value": row["value"]})
    rows.sink("out", JsonlSink(str(tmp_path / "out")))
    result = flow.run_local(processes=2, ui=False, **PATIENT)
    assert (result.status.outcome, result.records) == ("finished", 1_000)
    assert values_in(tmp_path) == list(range(1_000))


@pytest.mark.slow
def test_a_job_that_has_ended_is_stopped_again_without_an_error(tmp_path: Path) -> None:
    flow = Dataflow("bounded")
    flow.rate("ticks", 1_000_000, 10).sink("out", JsonlSink(str(tmp_path / "out")))
    with flow.start_local(processes=1, ui=False, **PATIENT) as job:
        job.wait()
        job.stop()
        job.stop("now", wait=False)
        with pytest.raises(SavepointFailed, match=r"job bounded ended \(finished\) before the savepoint was taken"):
            job.stop(savepoint=str(tmp_path / "last"))


@pytest.mark.slow
def test_the_command_stops_its_processes_after_a_last_checkpoint(tmp_path: Path) -> None:
    flow_in(tmp_path)
    command = [*COMMAND, "run", "app.py:flow", "--local", "--processes", "2", "--checkpoints", "jobs", "--no-ui"]
    command += ["--resource-wait-timeout", "3600"]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: has_commits(tmp_path) or running.poll() is not None)
        running.terminate()
        printed, said = running.communicate(timeout=600)
    finally:
        running.kill()  # no effect on an ended process
    assert running.returncode == 143, said
    assert printed.startswith("job apart stopped: ")
    assert each_once(values_in(tmp_path))


@pytest.mark.slow
def test_processes_of_a_killed_program_end(tmp_path: Path) -> None:
    flow_in(tmp_path)
    program = (
        "from app import flow\n"
        "job = flow.start_local(processes=2, ui=False, checkpoints='jobs', resource_wait_timeout=3600)\n"
        "while job.status().checkpoints.completed < 1: pass\n"
        "print(*[slot.pid for slot in job.status().slots], flush=True)\n"
        "job.wait()\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        pids = [int(pid) for pid in running.stdout.readline().split()]
    finally:
        running.kill()
        running.communicate()
    assert len(pids) == 2
    until(lambda: all(map(is_gone, pids)))


@pytest.mark.slow
def test_ctrl_c_while_a_job_is_being_closed_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, which goes on: a slot hangs, so closing takes long, and the user presses Ctrl-C again."""
    job = start(tmp_path, 1)
    coordinator, slot = job.coordinator_pid, until_status(job, lambda status: status.phase == "running").slots[0].pid
    assert coordinator is not None
    os.kill(slot, signal.SIGSTOP)
    try:
        monkeypatch.setattr(job._slots, "join", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt), job:
            raise KeyboardInterrupt
        until_within(lambda: is_gone(slot) and is_gone(coordinator), patience_s=60)
    finally:
        job._carrier.close()


@pytest.mark.slow
def test_another_program_adds_slots_and_replaces_them(tmp_path: Path) -> None:
    with start(tmp_path, 1, parallelism=2) as job:
        until_status(job, lambda status: status.missing_slots == (1,))
        embedded = job._coordinator._embedded
        assert embedded is not None
        at = ["--coordinator", embedded.url, "--token-file", str(embedded._token_file)]
        refused = run_here("slot", "app.py:flow", *at, "--slot", "2", cwd=tmp_path)
        assert refused.returncode == 2
        assert "has slots 0 to 1, and those that are missing now: 1" in refused.stderr
        joining = [*COMMAND, "slot", "app.py:flow", *at, "--slot"]
        joined = subprocess.Popen([*joining, "1"], cwd=tmp_path)
        try:
            pid = until_checkpoints(job, 2).slots[1].pid
            taken = run_here("slot", "app.py:flow", *at, "--slot", "1", cwd=tmp_path)
            assert taken.returncode == 2
            assert "those that are missing now: none" in taken.stderr
            os.kill(pid, signal.SIGKILL)
            until_replaced(job, 1, pid)
            until_checkpoints(job, 2)
            joined.kill()
            joined.wait()
            until_status(job, lambda status: status.missing_slots == (1,))
            joined = subprocess.Popen([*joining, "1"], cwd=tmp_path)  # a later program, with greater attempts
            until_checkpoints(job, 2)
            job.stop()
            assert joined.wait(timeout=600) == 0
        finally:
            joined.kill()  # no effect on an ended process
            joined.wait()
    assert each_once(values_in(tmp_path))


@pytest.mark.slow
def test_a_slot_with_another_program_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, 0, parallelism=2) as job:
        until_status(job, lambda status: status.missing_slots == (0, 1))
        embedded = job._coordinator._embedded
        assert embedded is not None
        (tmp_path / "app.py").write_text((tmp_path / "app.py").read_text().replace('"ticks"', '"others"'))
        at = {"BARRIER_RUNTIME_COORDINATOR": embedded.url, "BARRIER_RUNTIME_TOKEN_FILE": str(embedded._token_file)}
        refused = run_here("slot", "app.py:flow", "--slot", "1", cwd=tmp_path, variables=at)
        assert refused.returncode == 2
        assert "runs another program than this one" in refused.stderr
        job.stop("now")


@pytest.mark.slow
def test_slots_that_join_before_the_program_have_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(FORGETS_TO_STORE)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the slot's command finds the coordinator there
    monkeypatch.setattr("tempfile.tempdir", None)
    command = [*COMMAND, "run", "app.py:flow", "--local", "--processes", "0", "--parallelism", "1", "--check-state"]
    command += [
        "--checkpoints",
        "jobs",
        "--restart",
        "none",
        "--resource-wait-timeout",
        "3600",
        "--slot-timeout",
        "300",
    ]
    joining = [*COMMAND, "slot", "app.py:flow", "--slot", "0", "--wait", "3600"]
    joined = subprocess.Popen(joining, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert joined.stderr is not None
        assert "takes no slots yet; waiting 3600 s (no coordinator of this user" in joined.stderr.readline()
        running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        try:
            said = running.communicate(timeout=600)[1]
            # The coordinator ends with the program, perhaps before the command saw the job's end.
            joined_said = joined.communicate(timeout=600)[1]
        finally:
            running.kill()  # no effect on an ended process
            running.wait()
    finally:
        joined.kill()  # no effect on an ended process
        joined.communicate()
    for ended, told in (running, said), (joined, joined_said):
        assert ended.returncode == 1, told
        assert "its value was changed in place but not stored" in told


TELLS_OF_PANDAS = """
import sys


class Told:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas" and "slot_process" in " ".join(sys.orig_argv):
            asyncio = sys.modules.get("asyncio")
            inside = asyncio is not None and asyncio._get_running_loop() is not None
            with open({told!r}, "a") as file:
                file.write(f"{{'in' if inside else 'before'}} the loop\\n")


sys.meta_path.insert(0, Told())
"""


@pytest.mark.slow
def test_a_slots_first_value_imports_no_library_in_its_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the slot would be silent for longer than `slot_timeout`, at each start."""
    told = tmp_path / "told"
    (tmp_path / "sitecustomize.py").write_text(TELLS_OF_PANDAS.format(told=str(told)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    flow = Dataflow("first-value")
    rows = flow.rate("ticks", 1_000, 100).map(lambda row: {"n": row["value"]}, schema={"n": int})
    rows.sink("out", JsonlSink(str(tmp_path / "out")))
    flow.run_local(processes=1, ui=False, checkpoints=str(tmp_path / "jobs"), **PATIENT)
    assert set(told.read_text().splitlines()) == {"before the loop"}


def test_wrong_numbers_of_processes_are_refused() -> None:
    flow = Dataflow("apart")
    flow.rate("ticks", 1, 1).sink("out", print)
    for wrong in (-1, True, 1.5):
        with pytest.raises(InvalidJob, match="processes"):
            flow.run_local(processes=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="processes=3 is more than parallelism=2"):
        flow.start_local(processes=3, parallelism=2)
    with pytest.raises(InvalidJob, match="coordinator_lease has no meaning in a local run"):
        flow.run_local(coordinator_lease=3)
    with pytest.raises(InvalidJob, match="at_least has no meaning in a local run"):
        flow.run_local(processes=2, at_least=1)  # type: ignore[call-arg]


SEEN = """
import os

from barrier_runtime import Dataflow, JsonlSink


def seen(row):
    with open(os.path.join({seen!r}, str(os.getpid())), "a") as file:
        file.write(str(row["value"]) + "\\n")
    return {{"value": row["value"]}}


flow = Dataflow("leaves")
flow.rate("ticks", 500, splits=4).map(seen, schema={{"value": int}}).sink("out", JsonlSink({out!r}))
"""


def test_a_process_with_a_power_signal_is_replaced_without_reading_a_row_twice(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    names: dict[str, Any] = {}
    exec(SEEN.format(seen=str(tmp_path / "seen"), out=str(tmp_path / "out")), names)
    options: Any = {"checkpoints": str(tmp_path / "jobs"), "checkpoint_interval": 0.2, "ui": False, **PATIENT}
    with names["flow"].start_local(processes=2, **options) as job:
        leaving = until_checkpoints(job, 2).slots[1].pid
        os.kill(leaving, signal.SIGPWR)
        until_replaced(job, 1, leaving)
        until(lambda: is_gone(leaving))
        status = until_checkpoints(job, 2)
        assert [each.kind for each in status.recoveries] == ["start", "rescale"], status.recoveries
        (move,) = status.rescales
        assert (move.what, move.state) == ("move off a host", "done")
        assert status.restored_checkpoint == move.checkpoint
        assert status.leaving == ()
        print(f"gap {move.pause_ms} ms")
    rows = [int(line) for file in (tmp_path / "seen").iterdir() for line in file.read_text().splitlines()]
    assert len(rows) == len(set(rows)), "rows were read twice"
    assert len(list((tmp_path / "seen").iterdir())) == 3
    assert values_in(tmp_path) == sorted(rows)
    assert each_once(values_in(tmp_path))
