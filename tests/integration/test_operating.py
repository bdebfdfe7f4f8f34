"""Operating jobs from outside: a coordinator daemon that several programs share, the command line, and stopping."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import counting_flow, enough, kill, verdict, visible_files

from barrier_runtime import Dataflow, InvalidJob, JsonlSink
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.launch.requests import SavepointFailed
from barrier_runtime.state.errors import Unavailable
from examples.servers.base import free_port
from tests.addresses import LOOPBACKS
from tests.waiting import until

pytestmark = pytest.mark.spark

COMMAND = str(Path(sys.executable).with_name("barrier-runtime"))


def completed(handle, at_least):
    status = handle.status()
    return status.phase == "running" and status.checkpoints.completed >= at_least


# ---------------------------------------------------------------- a daemon


class Daemon:
    """`barrier-runtime coordinator` on two fixed ports, started by hand as an operator would."""

    def __init__(self, folder, name="daemon", arguments=()):
        self._arguments = arguments
        self.storage = str(folder / "checkpoints")
        self.token_file = folder / "daemon.token"
        self.token_file.write_text("0123456789abcdef" * 4)
        self.token_file.chmod(0o600)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._listen = f"127.0.0.1:{free_port()}"
        self.log_path = folder / f"{name}.log"
        self._log = self.log_path.open("ab")
        self._client = CoordinatorClient(self.url, self.token_file.read_text())
        self.start()

    def start(self):
        addresses = ["--listen", self._listen, "--http", self.url.removeprefix("http://")]
        keeping = ["--storage", self.storage, "--token-file", str(self.token_file)]
        command = [COMMAND, "coordinator", *addresses, *keeping, *self._arguments]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        until(self._answers, "the daemon answered")

    def _answers(self):
        assert self._process.poll() is None, "the daemon did not start"
        try:
            return self._client.health().pid == self._process.pid
        except Unavailable:
            return False

    @property
    def running(self):
        return self._process.poll() is None

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        if self._process.poll() is None:
            kill(self._process.pid)
        self._process.wait()

    def command(self, name, *arguments, code=0):
        address = ["--coordinator", self.url, "--token-file", str(self.token_file)]
        done = subprocess.run(
            [COMMAND, name, *arguments, *address], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == code, done.stderr
        if name == "savepoint":
            return done.stdout
        return json.loads(done.stdout) if done.stdout else done.stderr

    def options(self):
        return {"coordinator": self.url, "token_file": str(self.token_file), "checkpoints": self.storage}


@contextmanager
def running_daemon(folder):
    daemon = Daemon(folder)
    try:
        yield daemon
    finally:
        daemon.kill()


def test_two_jobs_share_a_daemon_that_is_killed_and_started_again_by_hand(spark, tmp_path):
    """F9: both continue in their generation; the command line sees, triggers and stops them."""
    rows = 100_000  # over three minutes at this rate: five commands of the command line run before the end
    options = {"spark": spark, "parallelism": 2, "checkpoint_interval": 0.3}
    with running_daemon(tmp_path) as daemon:
        options |= daemon.options()
        one = counting_flow("daemon-one", tmp_path / "one", rows, 500).start(**options)
        two = counting_flow("daemon-two", tmp_path / "two", rows, 500).start(**options)
        try:
            until(lambda: completed(one, 2) and completed(two, 2), "both jobs completed checkpoints")
            before = one.status(), two.status()
            daemon.kill()
            daemon.start()
            counts = [status.checkpoints.completed + 1 for status in before]
            until(
                lambda: completed(one, counts[0]) and completed(two, counts[1]),
                "checkpoints go on under the new daemon, and their count",
            )
            assert [one.status().token, two.status().token] == [status.token for status in before]
            assert {job["job"] for job in daemon.command("status", "--json")} == {"daemon-one", "daemon-two"}
            assert daemon.command("checkpoint", "daemon-one", "--json")["answer"] == "accepted"
            assert daemon.command("status", "daemon-two", "--json")["phase"] == "running"
            assert "job nobody is not known" in daemon.command("status", "nobody", code=2)
            daemon.command("stop", "daemon-two", "--json")
            assert two.wait(180).status.outcome == "cancelled"
            enough(tmp_path / "one")
            assert one.wait(180).records == rows
            assert "not running" in daemon.command("checkpoint", "daemon-two", "--json", code=1)["reason"]
        finally:
            one.close()
            two.close()
        counting_flow("daemon-two", tmp_path / "two", rows, 60_000).run(**options)
    for out in ("one", "two"):
        assert verdict(tmp_path / out, rows).right, (out, verdict(tmp_path / out, rows))


def test_a_job_ends_with_a_savepoint_and_another_goes_on_with_it(spark, tmp_path):
    """By handle and by command; the daemon is killed in between, and the first job's folder is deleted before the
    second job begins. Together they write each row once.
    """
    rows = 120_000  # two minutes for the commands
    savepoints = tmp_path / "savepoints"
    options = {"spark": spark, "parallelism": 2, "checkpoint_interval": 0.3}
    with running_daemon(tmp_path) as daemon:
        options |= daemon.options()
        with counting_flow("first", tmp_path / "out", rows, 1_000).start(**options) as first:
            until(lambda: completed(first, 2), "checkpoints completed")
            shown = daemon.command("savepoint", "first", "--to", str(savepoints / "one"))
            assert "one: checkpoint" in shown
            daemon.kill()
            daemon.start()
            taken = first.savepoint(str(savepoints / "two"))
            assert taken.checkpoint > 2
            assert taken.bytes > 0
            with pytest.raises(SavepointFailed, match="another savepoint already"):
                first.savepoint(str(savepoints / "two"))
            assert first.status().phase == "running"
            last = first.stop(savepoint=str(savepoints / "last"))
            assert last.checkpoint > taken.checkpoint
            assert first.wait(180).status.outcome == "cancelled"
        shutil.rmtree(tmp_path / "checkpoints" / "first")
        page = subprocess.run([COMMAND, "savepoints", "describe", last.url], capture_output=True, text=True, check=True)
        assert f"of checkpoint {last.checkpoint} of job first" in page.stdout
        assert "the job stopped with it" in page.stdout
        second = counting_flow("second", tmp_path / "out", rows, 60_000).run(**options, restore=last.url)
        assert second.status.outcome == "finished"
        again = counting_flow("second", tmp_path / "out", rows, 60_000).run(**options, restore=last.url)
        reached = second.status.checkpoints.last_completed.checkpoint
        assert again.status.restored_checkpoint == reached, "the same command again goes on from what it has reached"
    assert verdict(tmp_path / "out", rows).right, verdict(tmp_path / "out", rows)


def test_a_program_and_a_daemon_with_different_storage_are_told_apart(spark, tmp_path):
    with running_daemon(tmp_path) as daemon:
        wrong = daemon.options() | {"checkpoints": str(tmp_path / "elsewhere")}
        flow = counting_flow("elsewhere", tmp_path / "out", 10, 1_000)
        with pytest.raises(InvalidJob, match=r"daemon keeps checkpoints in .*start the program with checkpoints="):
            flow.run(spark=spark, **wrong)
        daemon.token_file.write_text("another-token-which-is-long-enough-for-a-daemon")
        with pytest.raises(InvalidJob, match=r"not the daemon.s token"):
            flow.run(spark=spark, **daemon.options())
    with pytest.raises(Unavailable, match=r"does not answer .* is it running there\?"):
        flow.run(spark=spark, **daemon.options())


EVERYWHERE = {"coordinator_host": "127.0.0.2", "coordinator_bind": "0.0.0.0"}


@pytest.mark.parametrize("place", [{"coordinator_host": host} for host in LOOPBACKS] + [EVERYWHERE], ids=str)
def test_the_programs_own_coordinator_listens_where_it_is_told_to(spark, tmp_path, place):
    """Executors on other hosts need another address than 127.0.0.1; this test uses other loopback addresses."""
    flow = counting_flow("other-address", tmp_path / "out", 5_000, 50_000)
    flow.run(spark=spark, checkpoints=str(tmp_path / "checkpoints"), **place)
    assert verdict(tmp_path / "out", 5_000).right


# ---------------------------------------------------------------- stopping


def test_a_finished_job_has_let_go_of_its_sinks_in_the_workers_that_spark_uses_again(spark, tmp_path):
    """Else their connections stay open, and the next slot in such a worker takes them for Spark's own."""

    class Marking(JsonlSink):
        def close(self):
            super().close()
            (tmp_path / f"closed-{os.getpid()}").touch()

    flow = Dataflow("closing")
    flow.rate("numbers", 1e6, 1_000).sink("out", Marking(str(tmp_path / "out")))
    flow.run(spark=spark, parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.2)
    assert len(list(tmp_path.glob("closed-*"))) == 2


def test_a_stop_is_not_forgotten_when_the_coordinator_dies_before_it_is_done(spark, tmp_path):
    """F9: a coordinator keeps only facts of the log, so the requesting program repeats the request."""
    options = {"spark": spark, "parallelism": 2, "checkpoints": str(tmp_path / "checkpoints")}
    with counting_flow("stop-kill", tmp_path / "out", 10_000_000, 5_000).start(**options) as handle:
        until(lambda: completed(handle, 1), "a checkpoint completed")
        handle.stop("checkpoint")
        kill(handle.coordinator_pid)
        assert handle.wait(180).status.outcome == "cancelled"


@pytest.mark.parametrize("mode", ["checkpoint", "now"])
def test_a_stopped_job_goes_on_where_it_was_when_started_again(spark, tmp_path, mode):
    """C16: "checkpoint" commits all rows covered by the last checkpoint; "now" takes none."""
    rows, out = 40_000, tmp_path / "out"
    options = {"spark": spark, "parallelism": 2, "checkpoints": str(tmp_path / "checkpoints")}
    with counting_flow("stopped", out, rows, 500).start(**options, checkpoint_interval=0.3) as handle:
        until(lambda: completed(handle, 2), "two checkpoints completed")
        before = handle.status().checkpoints.last_completed.checkpoint
        handle.stop(mode)
        status = handle.wait(180).status
    assert status.outcome == "cancelled"
    if mode == "checkpoint":
        assert status.checkpoints.last_completed.checkpoint > before
        assert set(status.commits.through.values()) == {status.checkpoints.last_completed.checkpoint}
    stopped_at = len(visible_files(out))
    assert 0 < verdict(out, rows).rows < rows
    result = counting_flow("stopped", out, rows, 60_000).run(**options, checkpoint_interval=0.3)
    assert result.status.restored_checkpoint >= before
    assert len(visible_files(out)) > stopped_at
    assert verdict(out, rows).right, verdict(out, rows)


# ---------------------------------------------------------------- whole programs


def test_a_flow_runs_on_spark_from_the_command_line_with_the_modules_beside_it(tmp_path):
    (tmp_path / "helpers.py").write_text("def double(row):\n    return {**row, 'value': row['value'] * 2}\n")
    (tmp_path / "app.py").write_text(
        textwrap.dedent(f"""
            from barrier_runtime import Dataflow, JsonlSink

            from helpers import double

            def positive(row):
                return row["value"] >= 0

            flow = Dataflow("from-the-shell")
            numbers = flow.rate("numbers", 20_000, 2_000)
            numbers.filter(positive).map(double).sink("out", JsonlSink("{tmp_path / "out"}"))
        """)
    )
    done = subprocess.run(
        [COMMAND, "run", "app.py:flow", "--master", "local[2]", "--checkpoints", "checkpoints", "--interval", "0.2"],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("job from-the-shell finished: 2,000 records read")
    written = [
        json.loads(line)["value"] for file in visible_files(tmp_path / "out") for line in file.read_text().splitlines()
    ]
    assert sorted(written) == list(range(0, 4_000, 2))


def test_user_session_on_which_slots_cannot_live_is_refused_with_both_settings(tmp_path):
    """B5: dynamic allocation and speculation."""
    program = """
        import sys
        from pyspark.sql import SparkSession
        from barrier_runtime import Dataflow, InvalidJob, JsonlSink

        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.dynamicAllocation.enabled", "TRUE").config("spark.speculation", "true").getOrCreate()
        )
        flow = Dataflow("refused")
        flow.rate("numbers", 1000, 10).sink("out", JsonlSink(sys.argv[1] + "/out"))
        try:
            flow.run(spark=spark, checkpoints=sys.argv[1] + "/checkpoints")
        except InvalidJob as error:
            print(error)
        spark.range(1).count()  # the user's session lives on
        spark.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "spark.dynamicAllocation.enabled is true: executors would be taken away; set it to false" in done.stdout
    assert "spark.speculation is true" in done.stdout
