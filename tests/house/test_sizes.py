"""Sizes as guides: a file, a folder or a call above the bound has one idea too many, or a reason stated here."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_layers import modules
from tests.parsed import nodes

ROOT = Path(__file__).resolve().parents[2]
LINES_OF_A_FILE = 450  # about 400, and a margin for a change
FILES_OF_A_FOLDER = 16
PARAMETERS = 9  # without `self`

# Each has a separate bound against unnoticed growth, and the reason why the parts are one idea.
LONG_FILES = {
    "barrier_runtime/api/stream.py": (680, "classes that return one another, a third of it signatures of typed rows"),
    "barrier_runtime/operators/functions/process.py": (570, "one operator: rows, timers and errors share a key's turn"),
    "barrier_runtime/runtime/slot.py": (510, "every order of the coordinator and what a slot answers"),
    "barrier_runtime/runtime/sources/driver.py": (700, "one reader's life: opened, read, idle, paused, ended"),
    "barrier_runtime/testing/simulation/cluster.py": (530, "everything of one simulated job: its processes and faults"),
    "barrier_runtime/testing/simulation/loop.py": (590, "world, process and loop refer to one another"),
    "coordinator/job/slots.py": (540, "one table: who has a number, waits for one, succeeds, or is spare"),
    "coordinator/status/why/checkpoint.py": (510, "one decision: the first cause that the evidence shows"),
}
FULL_FOLDERS: dict[str, tuple[int, str]] = {}
_USERS = "a user's call: keywords, most of them with defaults"
WIDE_CALLS = {
    "barrier_runtime/api/lookup_steps.py:lookup": (16, _USERS),
    "barrier_runtime/api/steps.py:_step": (10, "the parts of one node of the plan"),
    "barrier_runtime/operators/functions/process.py:__init__": (10, "the arguments of `process`, checked"),
    "barrier_runtime/api/steps.py:_stateful": (15, "the parts of one node of the plan"),
    "barrier_runtime/connectors/kafka/sink/sink.py:__init__": (11, _USERS),
    "barrier_runtime/launch/local.py:_slot": (12, "the parts of one slot, as its process has them"),
    "barrier_runtime/operators/lookups/operator.py:lookup_settings": (17, "the arguments of `lookup`, checked"),
    "barrier_runtime/replay/replaying.py:replay": (10, _USERS),
    "barrier_runtime/runtime/context.py:__init__": (11, "what an operator is given of its slot"),
    "barrier_runtime/runtime/checkpointing.py:__init__": (11, "one snapshot: whose, where to, and whom it tells"),
    "barrier_runtime/testing/certification.py:certify": (20, _USERS),
    "barrier_runtime/testing/connected_harness.py:__init__": (12, _USERS),
    "barrier_runtime/testing/function_harness.py:__init__": (12, _USERS),
    "state/backend/keyed_backend.py:__init__": (10, "the parts of a backend"),
    "state/backend/keyed_backend.py:open_keyed_backend": (18, "what a backend is opened with"),
    "state/columns/column_table.py:__init__": (14, "the parts of a table"),
}


def bound(exceptions: dict[str, tuple[int, str]], name: str, usual: int) -> int:
    return exceptions[name][0] if name in exceptions else usual


def test_a_file_holds_one_idea() -> None:
    sizes = {module: len((ROOT / module).read_text(encoding="utf-8").splitlines()) for module in modules()}
    assert {m: n for m, n in sizes.items() if n > bound(LONG_FILES, m, LINES_OF_A_FILE)} == {}, "cut it by ideas"
    assert {m for m in LONG_FILES if sizes.get(m, 0) <= LINES_OF_A_FILE} == set(), "no exceptions any more"


def test_a_folder_is_seen_at_a_glance() -> None:
    sizes = Counter(str(Path(module).parent) for module in modules() if not module.endswith("__init__.py"))
    assert {f: n for f, n in sizes.items() if n > bound(FULL_FOLDERS, f, FILES_OF_A_FOLDER)} == {}, "make rooms"
    assert {f for f in FULL_FOLDERS if sizes[f] <= FILES_OF_A_FOLDER} == set(), "no exception any more"


def test_a_call_takes_few_parameters() -> None:
    sizes = dict(calls())
    assert {c: n for c, n in sizes.items() if n > bound(WIDE_CALLS, c, PARAMETERS)} == {}, "make them one value"
    assert {c for c in WIDE_CALLS if sizes.get(c, 0) <= PARAMETERS} == set(), "no exception any more"


def calls() -> Iterator[tuple[str, int]]:
    """Functions and methods with how many parameters they have, `self` apart; the widest of a name in a file."""
    for module in modules():
        widest: Counter[str] = Counter()
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                widest[node.name] = max(widest[node.name], len([name for name in names if name not in ("self", "cls")]))
        yield from ((f"{module}:{name}", count) for name, count in widest.items())


# Bytes. A capability adds a design record, never a chapter.
DOCUMENTS = {"ARCHITECTURE.md": 15_000, "benchmarks/README.md": 18_000, "CHANGELOG.md": 6_000}
RECORD_BYTES = 5_000


def test_a_document_is_read_to_its_end() -> None:
    records = {str(path.relative_to(ROOT)): RECORD_BYTES for path in (ROOT / "docs" / "design").glob("*.md")}
    sizes = {name: len((ROOT / name).read_bytes()) for name in (*DOCUMENTS, *records)}
    assert {name: size for name, size in sizes.items() if size > {**DOCUMENTS, **records}[name]} == {}, "cut a record"


def test_a_bullet_of_the_changelog_is_one_line() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if (line.startswith("- ") and len(line) > 100) or line.startswith("  ")] == []
