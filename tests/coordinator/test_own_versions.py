"""Versions that a process reports of itself."""

import importlib.metadata
import platform
from pathlib import Path

from barrier_runtime.coordinator.own_versions import _hash, own_versions


def test_versions_of_this_process_are_those_of_its_packages():
    found = own_versions()
    assert found["Python"] == platform.python_version()
    for package in ("pyarrow", "msgspec", "rocksdict"):
        assert found[package] == importlib.metadata.version(package)
    assert len(found["the build of barrier-runtime"]) == 12


def test_build_changes_with_each_source_and_with_nothing_else(tmp_path: Path):
    folder = tmp_path / "package"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1\n")
    (folder / "part" / "one.py").write_text("b = 2\n")
    before = _hash(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "one.pyc").write_bytes(b"compiled")
    assert _hash(folder) == before
    (folder / "part" / "one.py").write_text("b = 3\n")
    changed = _hash(folder)
    (folder / "part" / "one.py").rename(folder / "part" / "two.py")
    assert len({before, changed, _hash(folder)}) == 3
    assert _hash(tmp_path / "archive.zip") == ""
