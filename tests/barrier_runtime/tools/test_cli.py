"""The command `barrier-runtime` as a user sees it: a process with arguments, an exit code and output.

Refusals before a run are tested in this process.

Without Spark, except where a worker's view of the modules matters; jobs on Spark are in tests/integration.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, run_here

from barrier_runtime.coordinator.option_table import OPTIONS
from tests.waiting import until

APP = """
    from barrier_runtime import Dataflow, JsonlSink, count

    flow = Dataflow("from-the-shell")
    numbers = flow.rate("numbers", 100_000, {rows}, keys=10)
    numbers.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink("{out}"))
"""


def run(
    *arguments: str, cwd: Path | None = None, variables: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables}
    command = [*COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=cwd, env=environment)


def write_app(folder: Path, text: str) -> str:
    file = folder / "app.py"
    file.write_text(textwrap.dedent(text))
    return str(file)


@pytest.fixture
def app(tmp_path: Path) -> str:
    return write_app(tmp_path, APP.format(rows=1_000, out=tmp_path / "out"))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for where, _, names in os.walk(folder)
        if "_staging" not in where
        for name in names
        if name.endswith(".jsonl")
        for line in Path(where, name).read_text().splitlines()
    ]


def rows_in(folder: Path) -> int:
    return len(rows_of(folder))


# ---------------------------------------------------------------- run --local


@pytest.mark.slow
def test_a_local_run_writes_its_output_and_says_what_it_did(app: str, tmp_path: Path) -> None:
    done = run("run", f"{app}:flow", "--local", "--checkpoints", str(tmp_path / "checkpoints"))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"job from-the-shell finished: 1,000 records read, \d+ checkpoints? completed", done.stdout)
    assert rows_in(tmp_path / "out") == 1_000
    again = run_here("run", f"{app}:flow", "--local", "--checkpoints", str(tmp_path / "checkpoints"))
    assert again.returncode == 0, again.stderr
    assert rows_in(tmp_path / "out") == 1_000


def _as_in_a_terminal() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
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
        until(lambda: rows_in(tmp_path / "out"), "a checkpoint was committed")
        assert list((tmp_path / "tmp").glob("barrier-runtime-*"))
        running.send_signal(signal.SIGINT)
        _, printed = running.communicate(timeout=240)
    finally:
        running.kill()  # no effect on an ended process
    assert running.returncode == 130
    assert "interrupted: job from-the-shell was stopped" in printed
    assert "Traceback" not in printed
    assert list((tmp_path / "tmp").glob("barrier-runtime-*")) == []


@pytest.mark.slow
def test_sigterm_ends_a_local_run_after_a_last_checkpoint_and_leaves_no_folder(tmp_path: Path) -> None:
    """Signal of `docker stop` and systemd. The first checkpoint is the last: it commits the rows read so far by each
    subtask; the other subtask's progress at row 100 is unknown.
    """
    app = write_app(
        tmp_path,
        f"""
        from pathlib import Path
        from barrier_runtime import Dataflow, JsonlSink

        def tells(row):
            if row["value"] == 100:
                Path("{tmp_path}/read").touch()
            return row

        flow = Dataflow("from-the-shell")
        flow.rate("numbers", 10_000).map(tells).sink("out", JsonlSink("{tmp_path}/out"))
        """,
    )
    (tmp_path / "tmp").mkdir()
    running = subprocess.Popen(
        [*COMMAND, "run", f"{app}:flow", "--local", "--parallelism", "2", "--interval", "3600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    try:
        until((tmp_path / "read").exists, "rows were read")
        running.terminate()
        told, printed = running.communicate(timeout=240)
    finally:
        running.kill()  # no effect on an ended process
    assert (running.returncode, printed[:11]) == (143, "terminated:")
    assert "stopped after a last checkpoint" in printed
    assert "Traceback" not in printed
    counted = re.match(r"job from-the-shell stopped: ([0-9,]+) records read, 1 checkpoint completed", told)
    assert counted, told
    written = sorted(row["value"] for row in rows_of(tmp_path / "out"))
    assert int(counted[1].replace(",", "")) >= len(written)
    evens, odds = ([value for value in written if value % 2 == subtask] for subtask in range(2))
    assert evens == list(range(0, 2 * len(evens), 2))
    assert odds == list(range(1, 2 * len(odds), 2))
    assert 100 in evens
    assert list((tmp_path / "tmp").glob("barrier-runtime-*")) == []


@pytest.mark.parametrize(
    ("option", "more"),
    [
        (["--conf", "a=b"], ""),
        (["--coordinator-lease", "5"], ", or let slots run in processes (--processes)"),
    ],
)
def test_a_local_run_refuses_options_of_spark(app: str, option: list[str], more: str) -> None:
    done = run_here("run", f"{app}:flow", "--local", *option)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {option[0]} has no meaning in a local run, which has neither Spark nor a daemon: leave it out, or run "
        f"without --local{more}\n",
    )


@pytest.mark.slow
def test_a_local_run_takes_every_option_that_means_something_there(app: str, tmp_path: Path) -> None:
    flags = ["--checkpoints", str(tmp_path / "checkpoints"), "--retained", "2", "--state-backend", "memory"]
    flags += ["--restart", "fixed_delay", "--restart-delay", "0.5", "--restart-attempts", "none", "--no-check-state"]
    flags += ["--unaligned", "--aligned-timeout", "none", "--slot-timeout", "20", "--on-cancel", "retain"]
    done = run_here("run", f"{app}:flow", "--local", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_here("run", f"{app}:flow", "--local", "--restart", "none", "--restart-attempts", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: restart_attempts=3 has no meaning with restart='none': leave it out, or use ")


@pytest.mark.slow
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


# ---------------------------------------------------------------- targets without a flow


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app", "names no flow: write it as file.py:name"),
        ("two.py", "two.py has 2 flows in variables: name one of them, such as two.py:a"),
        ("none.py", "none.py has 0 flows in variables"),
        ("nowhere.py:flow", "there is no file 'nowhere.py' (looked in "),
        ("app.py:job", "app.py has no Dataflow called 'job'; it has: flow"),
        ("app.py:", "names no flow"),
        ("app.txt:flow", "is not a Python file: give one that ends in .py"),
    ],
)
def test_a_target_that_names_no_flow_is_explained(app: str, tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "app.txt").write_text("flow = 1")
    (tmp_path / "two.py").write_text("from barrier_runtime import Dataflow\na, b = Dataflow('a'), Dataflow('b')\n")
    (tmp_path / "none.py").write_text("flow = 1")
    done = run_here("run", target, "--local", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_only_flow_of_a_file_needs_no_name(app: str) -> None:
    done = run_here("explain", app)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run_here("explain", f"{app}:flow").stdout


def test_a_mistake_in_the_flow_is_shown_with_the_users_line(tmp_path: Path) -> None:
    app = write_app(
        tmp_path,
        """
        from barrier_runtime import Dataflow

        flow = Dataflow("mistaken")
        flow.rate("numbers", 10, 10).key_by("shop")
        """,
    )
    done = run_here("explain", f"{app}:flow")
    assert done.returncode == 2
    assert "error: key_by('shop'): there is no column 'shop': use one of value, intended_at" in done.stderr
    assert f'{app}, line 5: flow.rate("numbers", 10, 10).key_by("shop")' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "how"),
    [(("run", "--local"), how) for how in ("run", "start", "run_local", "start_local")] + [(("explain",), "run_local")],
)
def test_a_program_that_runs_its_flow_while_it_is_loaded_is_refused_with_its_line(
    command: tuple[str, ...], how: str, tmp_path: Path
) -> None:
    """Otherwise the flow would run twice: when the command loads the program, and when it runs the flow."""
    out = tmp_path / "out"
    app = write_app(tmp_path, APP.format(rows=10, out=out) + f"    print(flow.{how}())\n")
    done = run_here(command[0], f"{app}:flow", *command[1:])
    assert done.returncode == 2
    assert f"{app} runs the flow 'from-the-shell' when it is loaded, and would run it a second time" in done.stderr
    assert 'below `if __name__ == "__main__":`' in done.stderr
    assert f"{app}, line 7: print(flow.{how}())" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


@pytest.mark.slow
def test_what_stands_below_main_is_left_to_the_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    guarded = '    if __name__ == "__main__":\n        flow.run_local()\n'
    app = write_app(tmp_path, APP.format(rows=10, out=out) + guarded)
    assert run_here("run", f"{app}:flow", "--local").returncode == 0
    assert len(rows_of(out)) == 10


@pytest.mark.parametrize(
    ("text", "said"), [("import nothing_of_that_name", "ModuleNotFoundError"), ("x = (", "SyntaxError")]
)
def test_a_file_that_cannot_be_loaded_shows_the_users_traceback_only(tmp_path: Path, text: str, said: str) -> None:
    app = write_app(tmp_path, text)
    done = run_here("run", f"{app}:flow", "--local")
    assert done.returncode == 2
    assert said in done.stderr
    assert f'File "{app}", line 1' in done.stderr
    assert "cannot be loaded: correct it" in done.stderr
    assert "importlib" not in done.stderr
    assert "cli.py" not in done.stderr


@pytest.mark.slow
def test_unknown_arguments_and_settings_are_refused(app: str) -> None:
    assert "No such option: --paralelism" in run_here("run", f"{app}:flow", "--paralelism", "3").stderr
    done = run_here("run", f"{app}:flow", "--conf", "spark.executor.memory")
    assert done.returncode == 2
    assert "--conf 'spark.executor.memory': write key=value" in done.stderr
    done = run_here("run", f"{app}:flow", "--local", "--parallelism", "0")
    assert (done.returncode, done.stderr) == (2, "error: parallelism=0: give a whole number from 1 to 1024\n")


# ---------------------------------------------------------------- explain and the daemon's clients


def test_explain_prints_chains_edges_settings_and_guarantees(app: str) -> None:
    done = run_here("explain", f"{app}:flow", "--parallelism", "3")
    assert done.returncode == 0, done.stderr
    for expected in (
        "job from-the-shell: 3 slots, 2 chains, 1 edge",
        "hash (key)",
        "parallelism: 3 [--parallelism]",
        "sink out: exactly-once",
        " options at the default (--all or defaults=True shows all)",
    ):
        assert expected in done.stdout
    assert "[default]" not in done.stdout


@pytest.mark.slow
def test_explain_says_where_each_value_comes_from(tmp_path: Path) -> None:
    """A flag overrides the environment, which overrides the flow file."""
    flow = 'Dataflow("from-the-shell", retained=2, min_pause=3, mode="at_least_once")'
    app = write_app(tmp_path, APP.format(rows=10, out=tmp_path).replace('Dataflow("from-the-shell")', flow))
    variables = {"BARRIER_RUNTIME_RETAINED": "3", "BARRIER_RUNTIME_MIN_PAUSE": "0.5", "BARRIER_RUNTIME_MASTER": "x"}
    done = run_here("explain", f"{app}:flow", "--local", "--all", "--retained", "4", variables=variables)
    assert done.returncode == 0, done.stderr
    for expected in (
        "retained: 4 [--retained]",
        "min_pause: 0.5 s [BARRIER_RUNTIME_MIN_PAUSE]",
        "mode: at_least_once [Dataflow(…)]",
        "checkpoint_timeout: 600 s [default]",
    ):
        assert f"  {expected}\n" in done.stdout
    assert "master" not in done.stdout
    assert "master: x [BARRIER_RUNTIME_MASTER]" in run_here("explain", f"{app}:flow", variables=variables).stdout
    done = run_here("explain", f"{app}:flow", variables={"BARRIER_RUNTIME_RETAINED": "many"})
    assert (done.returncode, done.stderr) == (2, "error: BARRIER_RUNTIME_RETAINED 'many': give a whole number\n")


@pytest.mark.slow
def test_a_daemon_that_does_not_answer_and_a_token_that_is_not_there_are_named(tmp_path: Path) -> None:
    token = tmp_path / "token"
    done = run_here("status", "--coordinator", "http://127.0.0.1:9", "--token-file", str(token))
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"error: cannot read the token file {token}: No such file or directory; make one: "
            f"(umask 077; openssl rand -hex 32 > {token})"
        ],
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
        pytest.param(["--storage", "ftp://host/path"], "unknown scheme 'ftp'", marks=pytest.mark.slow),
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


# ---------------------------------------------------------------- modules of the user's with names of our folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "command"),
    [
        (("state.py", "coordinator/__init__.py"), [sys.executable, "app.py"]),
        (("state/__init__.py", "coordinator.py"), [*COMMAND, "run", "app.py:flow", "--local"]),
    ],
    ids=["program", "command"],
)
def test_a_program_may_have_modules_with_the_names_of_our_folders(
    tmp_path: Path, files: tuple[str, str], command: list[str]
) -> None:
    mine = [tmp_path / file for file in files]
    for module in mine:
        module.parent.mkdir(exist_ok=True)
        module.write_text("mine = 1\n")
    text = APP.format(rows=10, out=tmp_path / "out") + "\n    import coordinator\n    import state\n\n"
    text += "    print(state.mine, state.__file__, coordinator.mine, coordinator.__file__)\n"
    text += "    if __name__ == '__main__':\n        flow.run_local()\n"
    write_app(tmp_path, text)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"1 {mine[0]} 1 {mine[1]}"), done.stderr
    assert rows_in(tmp_path / "out") == 10


@pytest.mark.parametrize("words", [(), ("run",), ("explain",), ("stop",), ("state",), ("state", "show")], ids=" ".join)
def test_a_help_page_has_whole_names_in_80_columns(words: tuple[str, ...]) -> None:
    page = run_here(*words, "--help", variables={"COLUMNS": "80"}).stdout
    assert max(map(len, page.splitlines())) <= 80
    assert "<bool>" not in page
    assert "╭" not in page
    offered = [option.flag for option in OPTIONS.values() if option.on_command_line]
    if words == ("run",):
        assert set(offered) <= set(re.findall(r"--[a-z-]+", page))
