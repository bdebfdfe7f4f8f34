"""The layers of the code as data: a folder imports only downward, counting imports in functions and for type checkers.

Code that a layer needs of a higher layer is passed to the layer as an argument, or lies too high.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import nodes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("state", "coordinator", "barrier_runtime")  # bottom to top; imported as barrier_runtime.state, …

# Top to bottom. Names on one line are equals, which do not import each other. A name is a folder or a file.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "barrier_runtime": (
        ("tools",),
        ("api",),
        ("replay", "bootstrap"),
        ("launch",),
        ("carriers",),
        ("spark", "testing"),
        ("state_tables",),
        ("runtime",),
        ("graph",),
        ("connectors",),
        ("operators",),
        ("data", "samples"),
    ),
    "coordinator": (
        ("server",),
        ("page",),
        ("client", "maintenance", "savepoint_import"),
        ("savepoint_files",),
        ("job",),
        ("status",),
        ("checkpoints",),
        ("store_calls", "pins"),
        ("log",),
        ("options",),
        ("own_versions",),
        ("wire",),
        ("option_types",),
        ("option_table", "metric_table"),
        ("json_lines",),
    ),
    "state": (
        ("backend",),
        ("snapshots",),
        ("columns", "values"),
        ("kv",),
        ("keys",),
        ("store",),
        ("descriptors",),
        (
            "ids",
            "masked_text",
            "outside_errors",
            "versioned",
            "threads",
            "ports",
            "sockets",
            "tls",
            "interfaces",
            "scratch",
        ),
        ("errors", "hosts", "libc", "texts"),
    ),
}

SHARED = ("sink_bases", "source_bases")  # below connectors/, of no system

PURE_FOLDERS = (  # no clock, socket, thread, process, file
    "barrier_runtime/data",
    "barrier_runtime/graph",
    "coordinator/checkpoints",
    "coordinator/job",
    "coordinator/log",
    "coordinator/status",
    "coordinator/wire",
)
PURE_FILES = (  # of folders that are not pure as a whole
    "barrier_runtime/connectors/delta/committable.py",
    "barrier_runtime/connectors/kafka/errors.py",
    "barrier_runtime/connectors/kafka/source/position.py",
    "barrier_runtime/connectors/sink_bases/file_committable.py",
    "barrier_runtime/connectors/sink_bases/write_ahead_committable.py",
    "barrier_runtime/operators/deduplication/bloom.py",
    "barrier_runtime/operators/lookups/book.py",
    "barrier_runtime/operators/lookups/replies.py",
    "barrier_runtime/operators/lookups/held_rows.py",
    "barrier_runtime/operators/keyed/timers.py",
    "barrier_runtime/operators/windows/assigners.py",
    "barrier_runtime/runtime/aligner.py",
    "barrier_runtime/runtime/barrier_tracker.py",
    "barrier_runtime/runtime/network/flow_control.py",
    "barrier_runtime/runtime/network/frames.py",
    "barrier_runtime/runtime/sinks/driver.py",
    "barrier_runtime/runtime/sinks/global_committer.py",
    "barrier_runtime/runtime/sinks/pending_set.py",
    "barrier_runtime/runtime/operator_chain.py",
    "barrier_runtime/runtime/subtask.py",
    "coordinator/maintenance/fsck.py",
    "coordinator/metric_table.py",
    "coordinator/option_table.py",
    "coordinator/options.py",
    "state/columns/segment.py",
    "state/errors.py",
    "state/ids.py",
    "state/keys/key_codec.py",
    "state/keys/key_groups.py",
    "state/kv/key_ranges.py",
    "state/snapshots/plan.py",
    "state/snapshots/snapshot.py",
    "state/store/paths.py",
    "state/store/urls.py",
    "state/values/expiry.py",
    "state/versioned.py",
)
IMPURE = {
    *("socket", "time", "threading", "random", "uuid", "asyncio", "os", "subprocess", "secrets", "tempfile", "shutil"),
    *("pathlib", "io", "glob", "ssl", "select", "selectors", "signal", "queue", "http", "logging", "ctypes", "mmap"),
    *("boto3", "botocore", "rocksdict", "pyspark", "uvloop", "starlette", "uvicorn", "concurrent", "multiprocessing"),
}
PURE_NAMES = {("uuid", "UUID")}  # of impure modules: types of values, which make none
CLOCKS_AND_FILES = {"open", "input", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}  # as called


@cache
def modules() -> tuple[str, ...]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found))  # `rglob` does not follow the two links


def file_of(name: str) -> str | None:
    """Our file for a dotted name, at the real location."""
    path = name.replace(".", "/")
    for package in ("state", "coordinator"):
        if f"{path}/".startswith(f"barrier_runtime/{package}/"):
            path = path.removeprefix("barrier_runtime/")
    return next((found for found in (f"{path}.py", f"{path}/__init__.py") if found in modules()), None)


@cache
def imported(module: str) -> frozenset[str]:
    """Files of ours that a file imports anywhere: at the top, in functions, for type checkers."""
    found: set[str | None] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name) for alias in node.names if alias.name.startswith("barrier_runtime")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("barrier_runtime"):
            found |= {file_of(f"{node.module}.{alias.name}") or file_of(node.module or "") for alias in node.names}
    return frozenset(each for each in found if each is not None and each != module)


def layer(module: str) -> tuple[int, str]:
    package, name = module.split("/")[0], module.split("/")[1].removesuffix(".py")
    for number, names in enumerate(LAYERS[package]):
        if name in names:
            return number, name
    return -1, name  # the package's __init__, which only names exports


def edges() -> Iterator[tuple[str, str]]:
    return ((module, other) for module in modules() for other in imported(module))


def test_every_folder_has_a_layer() -> None:
    assert [module for module in modules() if layer(module) == (-1, module.split("/")[1].removesuffix(".py"))] == [
        "barrier_runtime/__init__.py",
        "coordinator/__init__.py",
        "state/__init__.py",
    ]


def test_the_table_of_layers_in_the_architecture_is_this_one() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for package, layers in LAYERS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{package}` |"))
        folders = [{name for name in names if (ROOT / package / name).is_dir()} for names in layers]
        told = [set(re.findall(r"`(\w+)`", cell)) & set().union(*folders) for cell in row.split("·")]
        assert [names for names in told if names] == [names for names in folders if names]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_imports_only_downward(package: str) -> None:
    upward = {
        (module, other)
        for module, other in edges()
        if module.startswith(f"{package}/") and other.startswith(f"{package}/") and "__init__" not in module
        if layer(other)[0] < layer(module)[0] or (layer(other)[0] == layer(module)[0] and layer(other) != layer(module))
    }
    assert upward == set()


def test_packages_import_one_way() -> None:
    order = {package: number for number, package in enumerate(PACKAGES)}
    climbing = [edge for edge in edges() if order[edge[1].split("/")[0]] > order[edge[0].split("/")[0]]]
    assert climbing == []


def test_there_are_no_import_circles() -> None:
    """Counting imports in functions and under TYPE_CHECKING, where they hide."""
    assert list(circles()) == []


def circles() -> Iterator[frozenset[str]]:
    """Strongly connected files, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    counter = itertools.count()
    found: list[frozenset[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = next(counter)
        stack.append(module)
        for other in sorted(imported(module)):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            position = stack.index(module)
            found.append(frozenset(stack[position:]))
            del stack[position:]

    for module in modules():
        if module not in index:
            visit(module)
    return (circle for circle in found if len(circle) > 1)


def system(module: str) -> str:
    """The folder below connectors/ that contains a file; "" for shared files."""
    parts = module.split("/")
    inside = parts[:2] == ["barrier_runtime", "connectors"] and len(parts) > 3 and parts[2] not in SHARED
    return parts[2] if inside else ""


def test_no_connector_imports_another_systems() -> None:
    wrong = {
        (module, other)
        for module, other in edges()
        if module.startswith("barrier_runtime/connectors/") and "__init__" not in module
        if system(other) and system(module) != system(other)
    }
    assert wrong == set()


def test_what_decides_touches_nothing_outside() -> None:
    pure = {module for module in modules() if module.startswith(tuple(f"{folder}/" for folder in PURE_FOLDERS))}
    missing = set(PURE_FILES) - set(modules())
    wrong = {
        (module, touched)
        for module in sorted({*pure, *PURE_FILES} - missing)
        for node in nodes(module)
        for touched in touches(node)
    }
    assert (missing, wrong) == (set(), set())


def touches(node: ast.AST) -> list[str]:
    """Parts of the outside world that `node` imports or calls."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] in IMPURE]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = [alias.name for alias in node.names if (module, alias.name) not in PURE_NAMES]
        return [f"{module}.{name}" for name in names] if module.split(".")[0] in IMPURE else []
    if isinstance(node, ast.Call) and last_name(node.func) in {each.rpartition(".")[2] for each in CLOCKS_AND_FILES}:
        called = ".".join(ast.unparse(node.func).split(".")[-2:])
        return [called] if called in CLOCKS_AND_FILES else []
    return []


def last_name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
