"""A checkout without symbolic links reports the missing links; the two folders at the top are no separate packages."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BACKEND = "barrier_runtime/tools/wheel"


def _copy(folder: Path, *, links: bool) -> Path:
    """A copy as `git clone` makes it of this repository, on systems with and without symbolic links."""
    for name in ("coordinator", "state"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text((ROOT / name / "__init__.py").read_text())
    package = folder / "barrier_runtime"
    package.mkdir()
    shutil.copy(ROOT / "barrier_runtime" / "__init__.py", package)
    shutil.copytree(ROOT / BACKEND, folder / BACKEND)
    for name in ("coordinator", "state"):
        if links:
            (package / name).symlink_to(Path("..", name))
        else:
            (package / name).write_text(f"../{name}")
    return folder


def _python(folder: Path, code: str) -> str:
    """Last line of Python's standard error; "" if Python exits with 0."""
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = ['', {str(_site())!r}]; {code}"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return ended.stderr.strip().rpartition("\n")[2] if ended.returncode else ""


def _site() -> Path:
    import setuptools

    return Path(setuptools.__file__).parents[1]


@pytest.mark.parametrize("code", ["import barrier_runtime", "import barrier_runtime.state.errors"])
def test_an_import_without_links_says_how_to_get_them(tmp_path: Path, code: str) -> None:
    said = _python(_copy(tmp_path, links=False), code)
    assert "no symbolic links" in said
    assert "git config core.symlinks true" in said
    assert _python(_copy(tmp_path / "linked", links=True), "import barrier_runtime, barrier_runtime.state") == ""


def test_a_build_without_links_is_refused(tmp_path: Path) -> None:
    build = f"sys.path.insert(0, {BACKEND!r}); import checked_build; checked_build.build_wheel"
    said = _python(_copy(tmp_path, links=False), build)
    assert "its wheel would lack a package" in said
    assert "git config core.symlinks true" in said
    assert _python(_copy(tmp_path / "linked", links=True), build) == ""


@pytest.mark.parametrize("name", ["coordinator", "state"])
def test_the_folders_at_the_top_are_not_imported_by_themselves(name: str) -> None:
    said = _python(ROOT, f"import {name}")
    assert said == f"ImportError: import barrier_runtime.{name} instead"


def test_an_import_on_a_system_without_file_locks_names_the_needed_systems() -> None:
    code = "import importlib.util as found; find = found.find_spec\n"
    code += (
        "found.find_spec = lambda name, *more: None if name == 'fcntl' else find(name, *more)\nimport barrier_runtime"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.strip().rpartition("\n")[2] == (
        "ImportError: barrier_runtime needs Linux or macOS (this Python has no module fcntl): on Windows use WSL"
    )
