"""Build backend of pyproject.toml: setuptools' backend after a check.

Without symbolic links `barrier_runtime/state` is a file, and a wheel would lack two packages.
"""

from pathlib import Path

from setuptools.build_meta import *  # noqa: F403

for _name in ("coordinator", "state"):
    _link = Path("barrier_runtime", _name)  # a build runs in the folder of pyproject.toml
    if not _link.is_dir():
        raise SystemExit(
            f"{_link} is not a link to the folder {_name}: this checkout has no symbolic links, and its wheel would "
            "lack a package. In a clone: git config core.symlinks true, then git checkout -- barrier_runtime (Windows: "
            "switch developer mode on before). From an archive: unpack it with a program that keeps links, or clone"
        )
