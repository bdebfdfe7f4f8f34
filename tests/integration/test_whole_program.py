"""The whole program dies, an executor dies, a second program starts: real processes on real Spark."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import counting_flow, enough, gone, kill, verdict, visible_files

from barrier_runtime.spark.stage import cluster_of
from barrier_runtime.state.errors import Fenced
from tests.waiting import until

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).parent / "programs" / "counting.py"


def launch(tmp_path, rows, rate, master="local[2]"):
    log = (tmp_path / "program.log").open("ab")
    command = [sys.executable, str(PROGRAM), str(tmp_path / "out"), str(tmp_path / "checkpoints")]
    return subprocess.Popen(
        [*command, str(rows), str(rate), master],
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )


class Runs:
    """Successive runs of a program in the same folder; a start costs more than all strikes."""

    ROWS = 40_000
    RATE = 100  # seven minutes for the strikes; then all remaining rows come at once

    def __init__(self, folder: Path) -> None:
        self._folder, self._out = folder, folder / "out"

    def broken(self, break_off) -> str:
        """Starts the program, calls `break_off(program, processes)` once this run has committed checkpoints, and waits
        until all processes have left. Visible files stay visible. Returns the program's output.
        """
        before = self.visible
        (self._folder / "program.log").unlink(missing_ok=True)
        program, family = launch(self._folder, self.ROWS, self.RATE), []
        try:
            until(lambda: program.poll() is not None or len(self.visible) >= len(before) + 4, "checkpoints committed")
            assert program.poll() is None, self.said
            family = psutil.Process(program.pid).children(recursive=True)
            assert len(family) >= 4  # JVM, daemon, two workers, coordinator
            break_off(program, family)
        finally:
            program.kill()
            program.wait()
        until(lambda: all(map(gone, family)), "every process of the program left")
        assert before <= self.visible
        return self.said

    def to_the_end(self) -> None:
        before = self.visible
        enough(self._out)
        assert launch(self._folder, self.ROWS, self.RATE).wait(180) == 0, self.said[-3000:]
        assert before <= self.visible
        assert verdict(self._out, self.ROWS).right, verdict(self._out, self.ROWS)

    @property
    def visible(self) -> set[Path]:
        return set(visible_files(self._out))

    @property
    def said(self) -> str:
        return (self._folder / "program.log").read_text()


@pytest.mark.long(70)
def test_killed_interrupted_or_jvmless_program_leaves_no_process_and_continues(tmp_path):
    """R3, Z9: SIGKILL of the driver alone; Ctrl-C as a terminal sends it, to the program, the JVM and the workers (the
    coordinator is in a session of its own); SIGKILL of the JVM, whose driver must not wait for slots that can never
    register. JVM, workers and coordinator leave by themselves.
    """
    runs = Runs(tmp_path)
    runs.broken(lambda program, family: program.kill())

    def interrupt(program, family):
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(120) == -signal.SIGINT

    said = runs.broken(interrupt)
    assert said.strip().splitlines()[-1] == (
        "KeyboardInterrupt: job whole-program was stopped; what its last checkpoint covers is committed; "
        "the next run goes on from there"
    )
    assert said.count("Traceback") == 1
    assert [line.split(", in ")[1] for line in said.splitlines() if line.startswith('  File "')] == [
        "<module>",
        "main",
        "called",
    ], said

    jvms = []

    def kill_jvm(program, family):
        jvms.extend(process for process in psutil.Process(program.pid).children() if process.name() == "java")
        jvms[0].kill()
        assert program.wait(120) == 1

    said = runs.broken(kill_jvm).strip().splitlines()[-1]
    assert f"Spark's JVM, process {jvms[0].pid}, ended with exit code -9" in said, said
    runs.to_the_end()


def is_executor(process):
    try:
        return process.name() == "java" and any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def test_a_second_run_of_the_same_job_fences_the_first_which_says_by_whom(spark, tmp_path):
    """Z3, F6, bug 12: the first run stops without any write, the second run ends with the right output."""
    rows = 60_000
    out = tmp_path / "out"
    options = {
        "spark": spark,
        "parallelism": 1,
        "checkpoints": str(tmp_path / "checkpoints"),
        "checkpoint_interval": 0.3,
    }
    first = counting_flow("twice", out, rows, 600).start(**options)
    second = None
    try:
        until(lambda: first.status().checkpoints.completed >= 2, "the first run completed checkpoints")
        second = counting_flow("twice", out, rows, 60_000).start(**options)
        with pytest.raises(Fenced, match=rf"taken over by generation \d+ .*pid {os.getpid()}"):
            first.wait(120)
        second.wait(180)
    finally:
        first.close()
        if second is not None:
            second.close()
    assert verdict(out, rows).right, verdict(out, rows)


@pytest.fixture
def standalone_master(tmp_path):
    """A real standalone cluster on loopback: a worker with two cores. Yields the URL and the worker process."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    environment["SPARK_DAEMON_JAVA_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"]
    log = (tmp_path / "cluster.log").open("wb")

    def deploy(*arguments):
        command = [str(home / "bin" / "spark-class"), *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True)

    def said(pattern):
        return re.search(pattern, (tmp_path / "cluster.log").read_text())

    package = "org.apache.spark.deploy"
    ports = ("--port", "0", "--webui-port", "0")
    processes = [deploy(f"{package}.master.Master", "--host", "127.0.0.1", *ports)]
    try:
        until(lambda: said(r"Starting Spark master at (spark://\S+)"), "the master is up")
        url = said(r"Starting Spark master at (spark://\S+)").group(1)
        size = ("--cores", "2", "--memory", "1g")
        processes.append(deploy(f"{package}.worker.Worker", "--host", "127.0.0.1", *ports, *size, url))
        until(lambda: said("Successfully registered with master"), "the worker is up")
        yield url, psutil.Process(processes[-1].pid)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.long(50)
def test_standalone_cluster_survives_killed_slot_paused_driver_and_killed_executor(tmp_path, standalone_master):
    """Z9: coordinator and slots do not need the driver. An executor's Python workers end with the executor's JVM, and a
    new executor runs their slots.
    """
    rows = 40_000
    master, cluster_worker = standalone_master
    program = launch(tmp_path, rows, 160, master=master)

    def visible():
        return len(visible_files(tmp_path / "out"))

    def goes_on(what):
        seen = visible()
        until(lambda: program.poll() is not None or visible() >= seen + 4, f"checkpoints went on: {what}")
        assert program.poll() is None, (tmp_path / "program.log").read_text()[-3000:]

    try:
        goes_on("at the start")
        ui_port = int(re.search(r"MasterWebUI.* at http://\S+:(\d+)", (tmp_path / "cluster.log").read_text()).group(1))
        told = []  # the web page may be slow on a busy machine; the test does not wait for the page
        until(
            lambda: told.append(cluster_of(master, ui_port, "another application")) or told[-1] is not None,
            "the master's page answered",
        )
        assert told[-1] == (2, {"whole-program": 2})
        assert cluster_of("spark://127.0.0.1:1", ui_port, "") is None, "the page of another master"
        slots = [process for process in cluster_worker.children(recursive=True) if is_slot(process)]
        assert slots
        slots[-1].kill()
        goes_on("a slot was killed")
        kill(program.pid, signal.SIGSTOP)
        goes_on("the driver is paused")
        kill(program.pid, signal.SIGCONT)
        (executor,) = [process for process in cluster_worker.children(recursive=True) if is_executor(process)]
        workers = executor.children(recursive=True)
        executor.kill()
        until(lambda: all(map(gone, workers)), "the dead executor's Python workers left")
        goes_on("an executor was killed")
        enough(tmp_path / "out")
        assert program.wait(240) == 0, (tmp_path / "program.log").read_text()[-3000:]
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
    assert verdict(tmp_path / "out", rows).right, verdict(tmp_path / "out", rows)


def is_slot(process):
    """A forked PySpark worker: its parent is the daemon, which has the same command line."""
    try:
        parent = process.parent()
        return parent is not None and all("spark.worker_daemon" in " ".join(p.cmdline()) for p in (process, parent))
    except psutil.Error:
        return False
