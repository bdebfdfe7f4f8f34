"""Statements of README, ARCHITECTURE, CONTRIBUTING and docs/ are true: files and public names exist, programs of docs/
print the output below them; and the licence.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import io
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

import barrier_runtime
from barrier_runtime.connectors.registry import CONNECTORS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT, ROOT / "docs", ROOT / "docs" / "design", ROOT / "benchmarks")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in folder.glob("*.md"))
DESIGN = [document for document in DOCUMENTS if document.startswith("docs/design/")]
TOP = ("barrier_runtime", "coordinator", "state", "tests", "docs", "examples", "benchmarks", r"\.ci")
NAMED = re.compile(rf"(?<![\w/.-])(?:{'|'.join(TOP)})/[\w./*-]*[\w*]")

SHORT = re.compile(r"`((?!build/)[a-z_]+(?:/[a-z_]+)+(?:\.\w+)?)/?`")

PROGRAM = re.compile(r"```python\n(.*?)```\n(?:(?:It prints\n)?```\n(.*?)```\n)?", re.DOTALL)
PAGES = [
    path.name
    for path in sorted((ROOT / "docs").glob("*.md"))
    if any(said for _, said in PROGRAM.findall(path.read_text(encoding="utf-8")))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_what_stands_below_them(page: str) -> None:
    """Programs run in order: later programs may use the names of earlier programs."""
    path = ROOT / "docs" / page
    names = {"__name__": "__main__"}
    for code, said in PROGRAM.findall(path.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(path), "exec"), names)
        assert printed.getvalue() == said


def test_the_programs_of_a_page_define_or_import_every_name_they_use(tmp_path: Path) -> None:
    """A reader who copies the programs in their order needs nothing beyond the page."""
    for path in (ROOT / "docs").glob("*.md"):
        programs = "\n".join(code for code, _ in PROGRAM.findall(path.read_text(encoding="utf-8")))
        (tmp_path / f"{path.stem}.py").write_text(programs, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


NEEDS = {r"\.run\(|\.start\(": "spark", r"import pyspark|from pyspark": "spark"}  # text in a program -> extra
NEEDS |= {
    rf"\b(?:{'|'.join(each.name for part in (*row.sources, *row.sinks) for each in part.classes)})\("
    rf"|import {row.library.module}|from {row.library.module}": row.library.extra
    for row in CONNECTORS
    if row.library is not None
}


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_a_page_names_the_extra_of_what_its_programs_need(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    code = "\n".join(code for code, _ in PROGRAM.findall(text))
    wanted = {extra for needs, extra in NEEDS.items() if re.search(needs, code)}
    named = {extra for listed in re.findall(r"barrier-runtime\[([\w,]+)\]", text) for extra in listed.split(",")}
    assert wanted - named == set()


def test_no_page_of_what_users_write_is_without_programs() -> None:
    assert set(PAGES) >= {
        "aggregates.md",
        "coming-from-bytewax.md",
        "coming-from-flink.md",
        "coming-from-kafka-streams.md",
        "coming-from-spark.md",
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
        "tutorial.md",
        "windows.md",
        "writing-a-source.md",
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = {match.group() for match in NAMED.finditer(re.sub(r"https?://\S+", "", text))}
    roots = (ROOT, ROOT / "tests")  # the tables of tests leave out the folder of all tests
    assert [
        name for name in sorted(named) if not any((*root.glob(name), *root.glob(f"{name}.py")) for root in roots)
    ] == []


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md", *DESIGN])
def test_every_module_that_is_named_without_its_package_exists(document: str) -> None:
    """Names such as `log/records`, or a member: `page/job_view.KINDS`."""
    files = [str(path.relative_to(ROOT)) for top in TOP[:-1] for path in (ROOT / top).rglob("*")]
    named = set(SHORT.findall((ROOT / document).read_text(encoding="utf-8")))
    assert len(named) > 5 or document in DESIGN
    assert [name for name in sorted(named) if not any(is_there(name, file) for file in files)] == []


def is_there(name: str, file: str) -> bool:
    module, _, inside = name.partition(".")
    if f"/{file.removesuffix('.py')}".endswith(f"/{module}"):
        return inside in ("", "py") or inside in (ROOT / file).read_text(encoding="utf-8")
    return f"/{file}".endswith(f"/{name}")


def test_the_reference_has_every_public_name_and_each_has_a_docstring() -> None:
    """The reference lists a name by itself, or with the whole module."""
    said = set(re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE))
    homes = barrier_runtime._HOME
    assert [name for name, home in sorted(homes.items()) if not {home, f"{home}.{name}"} & said] == []
    told = {name: getattr(barrier_runtime, name).__doc__ or "" for name in homes}
    assert [name for name, text in told.items() if len(text) < 25 or text.startswith(f"{name}(")] == []  # a dataclass


def test_the_site_has_a_page_of_the_reference_for_each_public_name() -> None:
    """`make docs` itself looks for module paths in titles, and for the terms of `SEARCHED`."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    sys.modules["site_hooks"] = hooks  # for its dataclass
    try:
        spec.loader.exec_module(hooks)
    finally:
        del sys.modules["site_hooks"]
    pages = [page for found in hooks.reference().values() for page in found]
    names = Counter(name for page in pages for _, name in page.names)
    assert [name for name in barrier_runtime._HOME if names[name] != 1] == []
    assert [page.title for page in pages if "." in page.title] == []
    assert len({page.path.lower() for page in pages}) == len(pages), "also where case is not told apart"
    assert {page.title for page in pages if len(page.names) > 1} == set(hooks.GROUPS.values())
    assert all(page.about for page in pages)


def undocumented(kind: type) -> Iterator[str]:
    """Public methods and properties without a docstring of their own or of a base class."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("barrier_runtime")]
    for name in sorted({name for base in ours for name in vars(base) if not name.startswith("_")}):
        found = [vars(base)[name] for base in ours if name in vars(base)]
        if any(
            inspect.isroutine(each) or isinstance(each, property | cached_property | classmethod | staticmethod)
            for each in found
        ) and not any(each.__doc__ for each in found):
            yield f"{kind.__name__}.{name}"


def test_every_method_of_a_public_class_has_a_docstring() -> None:
    """Editors, `help()` and the reference show the docstring."""
    kinds = {kind for name in barrier_runtime.__all__ if isinstance(kind := getattr(barrier_runtime, name), type)}
    assert len(kinds) > 50
    assert sorted(method for kind in kinds for method in undocumented(kind)) == []


def test_the_licence_is_apache_2_word_for_word_and_in_the_metadata() -> None:
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_the_readme_imports_is_public() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from barrier_runtime import (.+)$", readme, re.MULTILINE)
    assert imported
    assert {name.strip() for line in imported for name in line.split(",")} <= set(barrier_runtime.__all__)


def test_the_readme_is_short_and_begins_with_its_sentence_and_a_program() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert lines[2].startswith("Exactly-once stream processing")
    assert lines[4] == "```python"


@pytest.mark.slow
def test_the_program_of_the_readme_runs_as_printed() -> None:
    code = PROGRAM.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0][0]
    assert len([line for line in code.splitlines() if line]) <= 11
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    *rows, last = printed.getvalue().splitlines()
    assert len(rows) == 4
    assert all(row.startswith("{'sensor': 'door', 'window_start': ") for row in rows)
    assert last.startswith("job readings finished: 2,400 records read")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_blank_line_separates_a_code_block_from_a_list_or_table(document: str) -> None:
    """Without the blank line the site shows the list or table as one paragraph."""
    text = (ROOT / document).read_text(encoding="utf-8")
    assert re.findall(r"^```\n(?:- |\d+\. |\|).*", text, re.MULTILINE) == []


LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_to_a_file_leads_to_one(document: str) -> None:
    path = ROOT / document
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_readme_leads_to_every_page() -> None:
    links = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages - links == set()


def test_ci_builds_the_site_with_strict_links() -> None:
    """A link or an anchor that leads nowhere, or a page that the navigation leaves out, fails `make docs`: a build of
    a quarter of a minute, which no test does once more."""
    assert "\nstrict: true\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(r"^for chore in .*\bdocs\b", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
