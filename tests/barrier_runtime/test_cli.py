"""The command `barrier-runtime` as a user meets it: a process with arguments, an exit code and what it prints.

Without Spark, except where a worker's view of the modules is the point; jobs on Spark are in tests/integration.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("barrier-runtime"))]
APP = """
    from barrier_runtime import Dataflow, JsonlSink, count

    flow = Dataflow("from-the-shell")
    numbers = flow.rate("numbers", 100_000, {rows}, keys=10)
    numbers.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink("{out}"))
"""


def run(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def write_app(folder: Path, text: str) -> str:
    file = folder / "app.py"
    file.write_text(textwrap.dedent(text))
    return str(file)


@pytest.fixture
def app(tmp_path: Path) -> str:
    return write_app(tmp_path, APP.format(rows=1_000, out=tmp_path / "out"))


def rows_in(folder: Path) -> int:
    return sum(
        len(Path(where, name).read_text().splitlines())
        for where, _, names in os.walk(folder)
        if "_staging" not in where
        for name in names
        if name.endswith(".jsonl")
    )


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.02)


# ---------------------------------------------------------------- run --local


def test_a_local_run_writes_its_output_and_says_what_it_did(app: str, tmp_path: Path) -> None:
    done = run("run", f"{app}:flow", "--local", "--checkpoints", str(tmp_path / "checkpoints"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("job from-the-shell finished: 1,000 records read, 1 checkpoints completed")
    assert rows_in(tmp_path / "out") == 1_000
    again = run("run", f"{app}:flow", "--local", "--checkpoints", str(tmp_path / "checkpoints"))
    assert again.returncode == 0, again.stderr
    assert rows_in(tmp_path / "out") == 1_000


def _as_in_a_terminal() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_local_run_without_a_stack_and_leaves_no_folder(tmp_path: Path) -> None:
    app = write_app(tmp_path, APP.format(rows="None", out=tmp_path / "out"))
    (tmp_path / "tmp").mkdir()
    command = [*COMMAND, "run", f"{app}:flow", "--local", "--interval", "0.1"]
    running = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=_as_in_a_terminal,
    )
    try:
        wait_until(lambda: rows_in(tmp_path / "out"), "a checkpoint was committed")
        assert list((tmp_path / "tmp").glob("barrier-runtime-*"))
        running.send_signal(signal.SIGINT)
        _, printed = running.communicate(timeout=60)
    finally:
        running.kill()  # nothing to one that has ended
    assert running.returncode == 130
    assert printed.startswith("interrupted: job from-the-shell was stopped")
    assert "Traceback" not in printed
    assert list((tmp_path / "tmp").glob("barrier-runtime-*")) == []


def test_a_users_exception_is_all_that_is_printed(tmp_path: Path) -> None:
    app = write_app(
        tmp_path,
        """
        from barrier_runtime import CollectSink, Dataflow

        def invert(row):
            return {"x": 1 / row["value"]}

        flow = Dataflow("divides")
        flow.rate("numbers", 1_000_000, 10).map(invert, name="invert").sink("out", CollectSink())
        """,
    )
    done = run("run", f"{app}:flow", "--local", "--parallelism", "1")
    assert done.returncode == 1
    assert done.stderr.startswith(f'Traceback (most recent call last):\n  File "{app}", line 5, in invert\n')
    assert "operator 'invert'" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("then start the job again.\n")


# ---------------------------------------------------------------- what names no flow


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app.py", "names no flow: write it as file.py:name"),
        ("nowhere.py:flow", "there is no file 'nowhere.py' (looked in "),
        ("app.py:job", "app.py has no Dataflow called 'job'; it has: flow"),
        ("app.py:", "names no flow"),
        ("app.txt:flow", "is no Python file: give one that ends in .py"),
    ],
)
def test_a_target_that_names_no_flow_is_explained(app: str, tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "app.txt").write_text("flow = 1")
    done = run("run", target, "--local", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistake_in_the_flow_is_shown_with_the_users_line(tmp_path: Path) -> None:
    app = write_app(
        tmp_path,
        """
        from barrier_runtime import Dataflow

        flow = Dataflow("mistaken")
        flow.rate("numbers", 10, 10).key_by("shop")
        """,
    )
    done = run("explain", f"{app}:flow")
    assert done.returncode == 2
    assert "error: key_by('shop'): there is no column 'shop': use one of value, intended_at" in done.stderr
    assert f'{app}, line 5: flow.rate("numbers", 10, 10).key_by("shop")' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"), [("import nothing_of_that_name", "ModuleNotFoundError"), ("x = (", "SyntaxError")]
)
def test_a_file_that_cannot_be_loaded_shows_the_users_traceback_only(tmp_path: Path, text: str, said: str) -> None:
    app = write_app(tmp_path, text)
    done = run("run", f"{app}:flow", "--local")
    assert done.returncode == 2
    assert said in done.stderr
    assert f'File "{app}", line 1' in done.stderr
    assert "cannot be loaded: correct it" in done.stderr
    assert "importlib" not in done.stderr
    assert "cli.py" not in done.stderr


def test_unknown_arguments_and_settings_are_refused(app: str) -> None:
    assert "No such option: --paralelism" in run("run", f"{app}:flow", "--paralelism", "3").stderr
    done = run("run", f"{app}:flow", "--conf", "spark.executor.memory")
    assert done.returncode == 2
    assert "--conf 'spark.executor.memory': write key=value" in done.stderr
    done = run("run", f"{app}:flow", "--local", "--parallelism", "0")
    assert (done.returncode, done.stderr) == (2, "error: parallelism=0: give a whole number from 1 to 1024\n")


# ---------------------------------------------------------------- explain and the daemon's clients


def test_explain_prints_chains_edges_settings_and_guarantees(app: str) -> None:
    done = run("explain", f"{app}:flow", "--parallelism", "3")
    assert done.returncode == 0, done.stderr
    for expected in (
        "job from-the-shell: 3 slots, 2 chains, 1 edges",
        "hash (key)",
        "parallelism: 3",
        "sink out: exactly-once",
    ):
        assert expected in done.stdout


def test_a_daemon_that_does_not_answer_and_a_token_that_is_not_there_are_named(tmp_path: Path) -> None:
    token = tmp_path / "token"
    done = run("status", "--coordinator", "http://127.0.0.1:9", "--token-file", str(token))
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [f"error: cannot read the token file {token}: No such file or directory"],
    )
    token.write_text("x" * 64)
    token.chmod(0o600)
    done = run("status", "--coordinator", "http://127.0.0.1:9", "--token-file", str(token))
    assert done.returncode == 2
    assert "coordinator http://127.0.0.1:9 does not answer" in done.stderr
    assert "is it running there?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--storage", "hdfs://host/path"], "unknown scheme 'hdfs'"),
        (["--storage", "{folder}", "--http", "0.0.0.0:0"], "is not a loopback address"),
        (["--storage", "{folder}", "--listen", "here"], "--listen 'here' is not understood: use host:port"),
    ],
)
def test_a_coordinator_that_cannot_start_says_why(tmp_path: Path, arguments: list[str], said: str) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 64)
    token.chmod(0o600)
    filled = [argument.format(folder=tmp_path / "checkpoints") for argument in arguments]
    done = run("coordinator", "--token-file", str(token), *filled)
    assert done.returncode == 2
    assert said in done.stderr


# ---------------------------------------------------------------- modules of the user's that hide ours


@pytest.mark.parametrize("name", ["state", "coordinator"])
def test_a_module_of_the_users_that_hides_ours_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    script = write_app(tmp_path, APP.format(rows=10, out=tmp_path / "out") + "\n    flow.run_local()\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{tmp_path / name}.py hides the package '{name}' of barrier-runtime: rename your module" in done.stderr


@pytest.mark.parametrize("name", ["state", "coordinator"])
def test_a_module_that_only_the_workers_would_find_first_is_named_before_spark_starts(
    app: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("mine = 1\n")
    done = run("run", f"{app}:flow", "--master", "local[2]", "--checkpoints", str(tmp_path / "checkpoints"))
    assert done.returncode == 2, done.stderr
    assert f"hides the package '{name}' of barrier-runtime" in done.stderr
    assert "rename your module" in done.stderr
