"""A Spark worker's Python without this package is refused before slots start, with the remedy."""

import sys
from pathlib import Path

import pytest

from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.spark.session import check_worker_python
from barrier_runtime.spark.task import SlotSettings, run_slot
from barrier_runtime.state.errors import InvalidJob


def without_packages(folder: Path) -> str:
    """Returns a Python that finds only the standard library, whatever the environment contains."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
def test_this_python_and_one_that_finds_the_package_are_taken(tmp_path: Path) -> None:
    check_worker_python(sys.executable, "")
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    other.chmod(0o755)
    check_worker_python(str(other), str(Path(__file__).parents[3]))


def test_a_python_without_the_package_is_told_with_the_remedy(tmp_path: Path) -> None:
    program = without_packages(tmp_path)
    with pytest.raises(
        InvalidJob, match=r"cannot import barrier_runtime \(ModuleNotFoundError.*PYSPARK_PYTHON="
    ) as told:
        check_worker_python(program, "")
    assert program in str(told.value)


def test_a_python_that_cannot_be_run_is_told_with_the_remedy(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    with pytest.raises(InvalidJob, match=r"cannot be run \(.*Exec format error.*\): set PYSPARK_PYTHON="):
        check_worker_python(str(program), "")


@pytest.mark.slow
def test_a_python_that_finds_the_package_but_not_what_it_needs_is_told(tmp_path: Path) -> None:
    """For example a Python with the source on the path: each slot would fail, and the job would wait for slots
    forever.
    """
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(InvalidJob, match=r"No module named '\w+'\): set PYSPARK_PYTHON="):
        check_worker_python(str(program), str(Path(__file__).parents[3]))


@pytest.mark.slow
def test_a_python_without_the_library_for_encryption_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "python"
    blocked = "import sys; sys.modules['cryptography'] = None"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{blocked}; $2"\n', encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(InvalidJob, match=r"cannot import barrier_runtime \(.*cryptography.*\): set PYSPARK_PYTHON="):
        check_worker_python(str(program), str(Path(__file__).parents[3]))


def test_an_executor_that_cannot_encrypt_fails_its_task_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reports errors of tasks to the driver; a handshake that fails for ever would be silent."""
    monkeypatch.delitem(sys.modules, "barrier_runtime.coordinator.wire.sealing", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    addresses = (("127.0.0.1", 1), ("198.51.100.7", 1))
    settings = SlotSettings(b"no program", SlotOptions(), b"s" * 32, addresses, "file:///none", job="j")
    with pytest.raises(ImportError, match="cryptography"):
        run_slot(0, 1, settings)


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"would run /no/such/python, which is not there: set PYSPARK_PYTHON="):
        check_worker_python("/no/such/python", "")
