"""The project as a package index shows it: `.ci/addressed` adds the repository's address to a copy of the files."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ADDRESS = "https://git.example.org/team/barrier-runtime"
_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def addressed(folder: Path, address: str) -> "subprocess.CompletedProcess[str]":
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, str(ROOT / ".ci" / "addressed"), str(folder), address, "v1.2.3"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_links_and_pictures_of_the_readme_are_absolute_on_an_index(tmp_path: Path) -> None:
    assert addressed(tmp_path, ADDRESS).returncode == 0
    before = _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    after = _LINK.findall((tmp_path / "README.md").read_text(encoding="utf-8"))
    kinds = {"": "blob", "!": "raw"}
    assert after == [
        (mark, link if "://" in link else f"{ADDRESS}/{kinds[mark]}/v1.2.3/{link}") for mark, link in before
    ]
    assert {mark for mark, _ in after} == {"", "!"}


def test_the_readme_of_an_index_installs_from_the_index(tmp_path: Path) -> None:
    addressed(tmp_path, ADDRESS)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "After `pip install barrier-runtime` the program above runs" in text
    assert "pip install '.[" not in text
    assert "pip install '.[" in (ROOT / "README.md").read_text(encoding="utf-8"), "a clone installs itself"


def test_the_metadata_has_urls_of_the_project(tmp_path: Path) -> None:
    addressed(tmp_path, ADDRESS)
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    urls = dict(re.findall(r'^(\w+) = "(https://[^"]+)"$', text.partition("[project.urls]")[2], re.MULTILINE))
    assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(ADDRESS) for url in urls.values())


@pytest.mark.parametrize("wrong", ["", "git@example.org:team/name", "https://example.org", 'https://a/"'])
def test_an_address_that_is_no_repositorys_is_refused(wrong: str, tmp_path: Path) -> None:
    done = addressed(tmp_path, wrong)
    assert done.returncode == 1
    assert "give the repository's address, https://HOST/OWNER/NAME" in done.stderr
    assert (tmp_path / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()


@pytest.mark.parametrize(
    "name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "ISSUE_TEMPLATE/fault.yml", "workflows/release.yml"]
)
def test_files_that_a_published_project_has_are_there(name: str) -> None:
    assert (ROOT / ".github" / name).read_text(encoding="utf-8").strip()
