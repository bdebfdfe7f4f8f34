"""One name, one meaning: public classes are unique, and words with a better term of the field are refused."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parsed import nodes, parsed

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("barrier_runtime", "coordinator", "state")

# A part of an identifier → the replacement.
TERMS = {
    "alarm": "timer",
    "bag": "key batch",
    "complaint": "log throttle",
    "dense": "column table",
    "farewell": "shutdown",
    "gang": "waiting for slots",
    "glance": "poll",
    "grant": "credit",
    "halt": "cancel",
    "lane": "sequential executor",
    "landed": "appended (to the log), created (in a store)",
    "lot": "batch",
    "patience": "timeout",
    "piece": "chunk",
    "spelling": "format",
    "stranger": "unknown object",
    "suspicion": "suspected stall",
    "tidy": "clean up",
    "trial": "probe",
}
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.relative_to(ROOT).parts[:2] not in (
                ("barrier_runtime", "coordinator"),
                ("barrier_runtime", "state"),
            ):
                yield file


def test_a_public_class_name_exists_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in files():
        for node in nodes(str(file.relative_to(ROOT))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def names_twice(body: list[ast.stmt]) -> list[str]:
    """Names that a module binds twice outside branches: each function of the module sees the second value."""
    names = list[str]()
    for node in body:
        if isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
            names += [each.id for each in targets if isinstance(each, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names += [] if any("overload" in ast.dump(each) for each in node.decorator_list) else [node.name]
    return sorted(name for name, times in Counter(names).items() if times > 1 and name != "_")


def test_a_module_binds_a_name_once() -> None:
    found = {str(file.relative_to(ROOT)): names_twice(parsed(str(file.relative_to(ROOT))).body) for file in files()}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.slow
def test_a_module_of_tests_binds_a_name_once() -> None:
    files = [file for folder in ("tests", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")]
    found = {str(file): names_twice(ast.parse(file.read_text(encoding="utf-8")).body) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


def identifiers(file: Path) -> Iterator[str]:
    for node in nodes(str(file.relative_to(ROOT))):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def words(identifier: str) -> set[str]:
    return {part.lower().removesuffix("s") for part in _PARTS.findall(identifier)}


def test_identifiers_use_the_terms_of_the_field() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}": f"write {TERMS[word]}"
        for file in files()
        for name in set(identifiers(file))
        for word in words(name) & TERMS.keys()
    }
    assert found == {}


def test_words_are_told_apart_in_identifiers() -> None:
    assert words("slot_of_lots") == {"slot", "of", "lot"}
    assert words("TcpDataPlane") == {"tcp", "data", "plane"}
    assert words("_GRANT_BYTES") == {"grant", "byte"}


def test_test_files_that_run_together_have_different_names() -> None:
    """pytest imports test files by their names alone: of two files with one name pytest takes one, and refuses the
    other.
    """
    apart = ("ends", "integration", "browser", "simulation")  # steps of their own in `make test`
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = file.relative_to(ROOT / "tests").parts[0]
        places[folder if folder in apart else "", file.name].append(str(file.relative_to(ROOT)))
    assert [files for files in places.values() if len(files) > 1] == []


_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
LONGEST_TEST_NAME = 80


def test_a_name_of_a_test_is_a_short_claim() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    names = [(file, name) for file in files for name in _TEST.findall(file.read_text(encoding="utf-8"))]
    assert len(names) > 2_000
    assert {name: str(file.relative_to(ROOT)) for file, name in names if len(name) > LONGEST_TEST_NAME} == {}


# A docstring of a property begins with a noun or a verb. These words begin a fragment without a noun.
FRAGMENTS = re.compile(
    r"\W*(about|as|by|false|for|how|in|it|no|none|of|that|there|to|true|under"
    r"|what|when|where|whether|who|why|with|without)\b",
    re.IGNORECASE,
)


def test_a_docstring_of_a_property_begins_with_a_noun_or_verb() -> None:
    documented = [
        (f"{file.relative_to(ROOT)}: {node.name}", docstring.splitlines()[0])
        for file in files()
        for node in nodes(str(file.relative_to(ROOT)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_property(node)
        for docstring in [ast.get_docstring(node)]
        if docstring
    ]
    assert len(documented) > 100
    assert {place: line for place, line in documented if FRAGMENTS.match(line)} == {}, "as: Returns whether …"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).split(".")[-1] in ("property", "cached_property") for each in node.decorator_list)
