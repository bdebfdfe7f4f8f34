"""What README, ARCHITECTURE, CONTRIBUTING and docs/ say is so: files and public names are there, programs of docs/
print what stands below them; and the licence."""

import contextlib
import hashlib
import io
import re
from pathlib import Path

import pytest

import barrier_runtime

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for folder in (ROOT, ROOT / "docs", ROOT / "benchmarks") for path in folder.glob("*.md")
)
TOP = ("barrier_runtime", "coordinator", "state", "tests", "docs", "examples", "benchmarks", r"\.ci")
NAMED = re.compile(rf"(?<![\w/.-])(?:{'|'.join(TOP)})/[\w./*-]*[\w*]")

PROGRAM = re.compile(r"```python\n(.*?)```\n(?:(?:It prints\n)?```\n(.*?)```\n)?", re.DOTALL)
PAGES = [
    path.name
    for path in sorted((ROOT / "docs").glob("*.md"))
    if any(said for _, said in PROGRAM.findall(path.read_text(encoding="utf-8")))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_what_stands_below_them(page: str) -> None:
    """One after the other: later ones may use the names of earlier ones."""
    path = ROOT / "docs" / page
    names = {"__name__": "__main__"}
    for code, said in PROGRAM.findall(path.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(path), "exec"), names)
        assert printed.getvalue() == said


def test_no_page_of_what_users_write_is_without_programs() -> None:
    assert set(PAGES) >= {
        "aggregates.md",
        "connect.md",
        "expressions.md",
        "for-each-batch.md",
        "iceberg.md",
        "joins.md",
        "lookup.md",
        "side-outputs.md",
        "state.md",
        "testing.md",
        "time.md",
        "windows.md",
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = {match.group() for match in NAMED.finditer(re.sub(r"https?://\S+", "", text))}
    roots = (ROOT, ROOT / "tests")  # the tables of tests leave out the folder of all tests
    assert [
        name for name in sorted(named) if not any((*root.glob(name), *root.glob(f"{name}.py")) for root in roots)
    ] == []


def test_the_licence_is_apache_2_word_for_word_and_in_the_metadata() -> None:
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_the_readme_imports_is_public() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from barrier_runtime import (.+)$", readme, re.MULTILINE)
    assert imported
    assert {name.strip() for line in imported for name in line.split(",")} <= set(barrier_runtime.__all__)
