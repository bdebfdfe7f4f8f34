"""The registry of engines, the parser of Jet's log, and the errors for engines that cannot be fetched."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import events, plan, splitmix
from benchmarks.engines import ENGINES, bytewax, java_build, jet
from benchmarks.spec import RunSpec
from examples.servers.base import ServerError

ROOT = Path(__file__).parents[2]
LOG = """\
2026-11-23 03:28:45.553 [127.0.0.1]:5701 [bench-1] [5.7.0] Starting snapshot 7 for job 'bench', execution 1055-db94
2026-11-23 03:28:47.896 [127.0.0.1]:5701 [bench-1] [5.7.0] Snapshot 7 phase 1 for job 'bench', execution 1055-db94 \
completed with status SUCCESS in 73ms, 1,126,517 bytes, 3,380 keys in 273 chunks, stored in '__jet.snapshot.1055.0'
2026-11-23 03:28:48.002 [127.0.0.1]:5701 [bench-1] [5.7.0] Snapshot 7 for job 'bench', execution 1055-db94 completed \
in 83ms, status=success
2026-11-23 03:29:02.040 [127.0.0.1]:5701 [bench-1] [5.7.0] Snapshot 8 phase 1 for job 'bench', execution 1055-db94 \
completed with status FAILURE in 57ms, 0 bytes, 0 keys in 0 chunks, stored in '__jet.snapshot.1055-db94-ab40-0001.1'
2026-11-23 03:29:02.151 [127.0.0.1]:5701 [bench-1] [5.7.0] Snapshot 8 for job 'bench', execution 1055-db94 completed \
in 171ms, status=failure: com.hazelcast.jet.impl.exception.JobTerminateRequestedException: CANCEL_FORCEFUL
"""


def cell(workload: str = "keyed-count", measure: str = "latency", source: str = "generator") -> RunSpec:
    return RunSpec(engine="", workload=workload, measure=measure, source=source, sink="measure")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["jet", "bytewax"])
def test_peers_of_one_workload_are_asked_for_nothing_else(engine: str) -> None:
    assert plan.can(engine, cell())
    assert not plan.can(engine, cell(workload="tumbling"))
    assert not plan.can(engine, cell(measure="visible"))
    assert not plan.can(engine, cell(measure="throughput", source="parquet"))
    assert not plan.can(engine, cell(source="kafka"))


def test_every_registry_row_names_existing_modules_and_no_two_rows_look_alike() -> None:
    named = {known.module for known in ENGINES.values()} | {known.setup for known in ENGINES.values() if known.setup}
    assert [name for name in named if not ROOT.joinpath(*name.split(".")).with_suffix(".py").exists()] == []
    for of in (lambda known: known.title, lambda known: known.colour):
        assert len({of(known) for known in ENGINES.values()}) == len(ENGINES)


def test_snapshots_of_jet_are_read_from_its_log_and_failed_ones_are_not_counted() -> None:
    (found,) = jet.snapshots(LOG.splitlines())
    assert (found.duration_ms, found.phases, found.bytes) == (83.0, {"phase 1": 73.0}, 1_126_517)
    assert found.at_ns == 1_795_404_528_002_000_000 - 83_000_000


def test_rows_made_one_by_one_are_those_of_the_generator() -> None:
    numbers = np.array([0, 1, 2**31, 2**62])
    made = events.events(numbers, numbers, 10_000).column("key").to_pylist()
    assert [splitmix.key_of(splitmix.mixed(number), 10_000) for number in numbers.tolist()] == made


@pytest.mark.slow
def test_another_program_gets_the_order_to_stop_and_what_it_says_comes_through() -> None:
    """As with the JVM: the program writes a word, waits for the end of the input, writes another and ends with its
    code.
    """
    said = "print('bench: running 1', flush=True); sys.stdin.read(); print('bench: finished 2'); sys.exit(3)"
    program = f"import sys; {said}"
    run_it = "sys.exit(run_program(sys.argv[1:], os.environ))"
    engine = f"import os, sys; from benchmarks.engines.child import run_program; {run_it}"
    command = [sys.executable, "-c", engine, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "bench: running 1\n"
        process.stdin.close()
        assert process.stdout.read() == "bench: finished 2\n"
        assert process.wait() == 3


@pytest.mark.slow
def test_bytewax_that_cannot_be_installed_is_told_with_what_was_tried_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Python replaces the command that makes a bare environment: a real environment brings pip, which takes
    seconds to unpack. Pip is real, and has no index.
    """
    python = tmp_path / "python"
    copy_itself = 'mkdir -p "$4/bin" && exec cp "$0" "$4/bin/python"'
    python.write_text(f'#!/bin/sh\n[ "$2" = venv ] && {{ {copy_itself}; }}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(bytewax, "_HOME", tmp_path)
    said = bytewax.missing()
    assert said is not None
    assert f"-m pip install --quiet --disable-pip-version-check bytewax=={bytewax.VERSION} failed" in said
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in said
    assert "see that pip reaches it, then run this again" in said
    assert f"No matching distribution found for bytewax=={bytewax.VERSION}" in said
    assert not (tmp_path / "_DONE").exists()


def test_jars_that_cannot_be_fetched_are_told_with_what_was_tried_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Maven that always fails replaces the real one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    maven = programs / "mvn"
    maven.write_text("#!/bin/sh\necho no route to the repository\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ServerError) as caught:
        java_build.connectors("jet")
    said = str(caught.value)
    assert f"{maven} -q -B dependency:copy-dependencies" in said
    assert "no route to the repository" in said
    assert "run this again, or put the jars into" in said
    assert jet.missing() == said
    assert list((tmp_path / "cache/barrier-runtime").iterdir()) == []
