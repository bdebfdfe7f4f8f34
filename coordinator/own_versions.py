"""Versions of this process that a registration compares."""

import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from barrier_runtime.coordinator.wire.versions import BUILD, PROJECT, PYTHON

_PACKAGES = (PROJECT, "pyarrow", "msgspec", "rocksdict")
_SOURCES = Path(__file__).parents[1]


@functools.cache
def own_versions() -> Mapping[str, str]:
    """Read once, before a worker daemon forks."""
    found = {PYTHON: platform.python_version(), BUILD: _hash(_SOURCES)}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a daemon needs no state backend
            continue
    return found


def _hash(folder: Path) -> str:
    """Short hash of all sources below `folder`; "" without sources, as in an archive."""
    total, files = hashlib.sha256(), 0
    for where, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for path in (Path(where, name) for name in sorted(names) if name.endswith(".py")):
            total.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
            files += 1
    return total.hexdigest()[:12] if files else ""
