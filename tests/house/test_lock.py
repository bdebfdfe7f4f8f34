"""`.ci/locked.txt` has a version with hashes and without an address for each dependency, within bounds."""

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LOCKED = (ROOT / ".ci" / "locked.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = [Requirement(line) for line in re.findall(r"^([a-z0-9][^\\\n]*?) *\\$", LOCKED, re.MULTILINE)]
NEEDED = [
    requirement
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, group)
    if requirement.name != PROJECT["name"]
]


@pytest.mark.parametrize("needed", NEEDED, ids=str)
def test_locked_versions_are_within_the_bounds_of_the_project(needed: Requirement) -> None:
    versions = [each.specifier for each in PINNED if each.name == canonicalize_name(needed.name)]
    assert versions, f"{needed.name} is not in .ci/locked.txt: run make lock"
    for version in versions:
        (pin,) = version
        assert pin.operator == "=="
        assert needed.specifier.contains(pin.version), f"{needed}: .ci/locked.txt has {pin.version}: run make lock"


def test_each_locked_version_has_hashes_and_no_address() -> None:
    assert len(PINNED) == len(re.findall(r"^\S+==", LOCKED, re.MULTILINE))
    assert len(re.findall(r"\\\n    --hash=", LOCKED)) >= len(PINNED)
    assert "://" not in LOCKED
