"""The rules of the house that a tool can check: import directions, doorways, docstrings, forbidden words."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime.connectors.registry import CONNECTORS
from tests.parsed import children, nodes, outline, parsed

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("state", "coordinator", "barrier_runtime")
MAY_IMPORT = {
    "state": {"state"},
    "coordinator": {"state", "coordinator"},
    "barrier_runtime": {"state", "coordinator", "barrier_runtime"},
}
DOORWAYS = {  # library -> the only places that may import the library
    "obstore": ("state/store/clouds.py",),
    "botocore": ("state/store/s3/aws.py", "barrier_runtime/connectors/kinesis/client.py"),
    "mypy_boto3_s3": ("state/store/s3/aws.py",),
    "rocksdict": ("state/kv/rocksdb.py",),
    **{
        row.library.module: (f"barrier_runtime/connectors/{row.name}/{row.library.doorway}",)
        for row in CONNECTORS
        if row.library is not None
    },
    "cryptography": ("coordinator/wire/sealing.py", "coordinator/client/generated_certificate.py"),
    "boto3": ("state/store/s3/aws.py", "barrier_runtime/connectors/kinesis/client.py"),
    "pyspark": ("barrier_runtime/spark/",),
    "hdrh": (),  # benchmarks and tests only: hdrh brings packages and a program
    "greenlet": ("barrier_runtime/testing/simulation/jobs.py",),
    "starlette": ("coordinator/",),
    "uvicorn": ("coordinator/",),
    "opentelemetry": ("coordinator/server/telemetry/opentelemetry.py",),
    "prometheus_client": ("coordinator/server/telemetry/prometheus.py",),
    "typer": ("barrier_runtime/tools/", "coordinator/"),
}
PICKLE_BY_WISH = {"barrier_runtime/operators/state/stored_type.py"}  # codec="pickle", which the user asks for by name
PICKLE_BELOW = "barrier_runtime/spark/"  # closures travel that way, inside Spark's own trust


def modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def package_of(name: str) -> str:
    """The folder at the top that a dotted name is of: `barrier_runtime.state.errors` is in `state`."""
    first, *others = name.split(".")
    return others[0] if first == "barrier_runtime" and others and others[0] in PACKAGES else first


def file_of(name: str) -> str | None:
    """Our file of a dotted name, at the real location; None if there is none."""
    path = name.replace(".", "/")
    path = path.removeprefix("barrier_runtime/") if package_of(name) != "barrier_runtime" else path
    return next((found for found in (f"{path}.py", f"{path}/__init__.py") if (ROOT / found).exists()), None)


def test_imports_run_one_way() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in outline(module).imports
        if (top := package_of(name)) in PACKAGES and top not in MAY_IMPORT[module.split("/")[0]]
    ]
    assert wrong == []


def test_everything_of_ours_is_imported_from_one_package() -> None:
    """`state` and `coordinator` are common names: users have modules of their own that are called so."""
    others = [
        str(path.relative_to(ROOT))
        for folder in ("tests", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    bare = re.compile(r"^\s*(?:from|import)\s+(?:[\w.]+\s*,\s*)*(?:state|coordinator)\b", re.MULTILINE)
    wrong = [
        f"{module}:{line} imports {name}"
        for module in [*modules(), *others]
        if bare.search((ROOT / module).read_text(encoding="utf-8"))  # most files need not be parsed for this
        for name, line in outline(module).imports
        if name.split(".")[0] in ("state", "coordinator")
    ]
    assert wrong == []
    assert {name: str((ROOT / "barrier_runtime" / name).readlink()) for name in ("state", "coordinator")} == {
        "state": "../state",
        "coordinator": "../coordinator",
    }


def test_there_are_no_import_circles_when_modules_are_loaded() -> None:
    graph = {module: set(loaded_modules(module)) for module in modules()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def loaded_modules(module: str) -> Iterator[str]:
    """Our files that are loaded with `module`: imports at the top level, not those for type checkers only."""
    for node in parsed(module).body:
        if isinstance(node, ast.ImportFrom) and package_of(node.module or "") in PACKAGES:
            base = file_of(node.module or "")
            is_folder = base is not None and base.endswith("/__init__.py")
            found = [file_of(f"{node.module}.{alias.name}") if is_folder else None for alias in node.names]
            yield from {each or base for each in found} - {None}


def test_every_library_has_one_doorway() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in outline(module).imports
        if (top := name.split(".")[0]) in DOORWAYS and not module.startswith(DOORWAYS[top])
    ]
    assert wrong == []


def test_every_module_says_what_it_owns() -> None:
    folders = ("examples", "benchmarks", "tests")
    others = [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    begins = re.compile(r'(?:#.*\n)*r?"""\s*[^\s"]')
    silent = [
        module
        for module in [*modules(), *others]
        if not begins.match((ROOT / module).read_text(encoding="utf-8")) and not outline(module).docstring.strip()
    ]
    empty = [module for module in silent if (ROOT / module).read_text(encoding="utf-8").strip() == ""]
    assert sorted(set(silent) - {module for module in empty if module.endswith("__init__.py")}) == []


def test_nothing_is_unpickled_outside_sparks_closures() -> None:
    wrong = [
        f"{module}:{node.lineno}"
        for module in modules()
        if module not in PICKLE_BY_WISH and not module.startswith(PICKLE_BELOW)
        for node in nodes(module)
        if (isinstance(node, ast.Import) and any("pickle" in alias.name for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and "pickle" in (node.module or ""))
        or (isinstance(node, ast.Attribute) and node.attr in ("loads", "load") and _is_pickle(node.value))
    ]
    assert wrong == []


def _is_pickle(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and "pickle" in value.id


def test_nothing_is_left_unwritten_or_slept_away() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX)\b")
    wrong = [
        f"{module}:{number} {line.strip()}"
        for module in modules()
        for number, line in enumerate((ROOT / module).read_text(encoding="utf-8").splitlines(), start=1)
        if unfinished.search(line)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["barrier_runtime", "barrier_runtime.coordinator", "barrier_runtime.state"])
def test_importing_the_package_loads_no_spark_and_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(' '.join(sorted(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.split(".")[0] for name in loaded} & {"pyspark", "boto3", "rocksdict", "starlette", "py4j"} == set()


def test_project_files_stand_on_their_own() -> None:
    """No text refers to a folder outside the repository or to the process of building the project."""
    tracked = [*PACKAGES, "tests", "examples", "benchmarks", "docs", ".ci"]
    files = [path for folder in tracked for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    outside = re.compile(r"\.\./" + r"shared|/work/" + r"shared")
    wrong = [
        str(path.relative_to(ROOT))
        for path in files
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".yml", ".html", ".sh", "")
        and "__pycache__" not in path.parts
        if outside.search(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert wrong == []


DECODERS_BELOW_MODULE_LEVEL = {
    "barrier_runtime/operators/state/described_types.py",  # users' types, one at a time under a lock
    "barrier_runtime/connectors/kafka/source/debezium_columns.py",  # likewise
    "barrier_runtime/connectors/source_bases/payloads.py",  # a separate type per decoder, shared with no thread
}
CONVERTS = {"barrier_runtime/launch/options.py"}  # plain types and unions of them; on the driver's one thread


def test_every_decoder_of_a_type_is_made_when_its_module_is_imported() -> None:
    """msgspec describes a type at the first use and lets other threads see the unfinished description: two threads that
    decode a type for the first time end the process with a segmentation fault.
    """
    wrong = [
        f"{module}:{node.lineno}: make a msgspec Decoder at the top of the module and use that"
        for module in modules()
        for node in calls_below_module_level(parsed(module))
        if (called(node) == "decode" and any(keyword.arg == "type" for keyword in node.keywords))
        or (called(node) in ("Decoder", "VersionedDecoder") and module not in DECODERS_BELOW_MODULE_LEVEL)
        or (called(node) == "convert" and ast.unparse(node.func) == "msgspec.convert" and module not in CONVERTS)
    ]
    assert wrong == []


NO_STORED_THING = {  # struct with a field `version` -> why no `VersionedDecoder` reads it
    "coordinator/wire/handshake.py:Hello": "a peer's, in a frame of its own; the acceptor checks it",
    "state/versioned.py:_Versioned": "what the decoder itself reads",
}
COMPARES_VERSIONS = {  # compares two known versions
    "barrier_runtime/connectors/kafka/sink/topic_limits.py",
    "barrier_runtime/runtime/network/frames.py",
    "state/columns/stored_rows.py",
}


def test_whatever_is_stored_under_a_version_is_read_by_the_one_decoder() -> None:
    found = [(module, node) for module in modules() for node in nodes(module)]
    versioned = {
        (module, node.name)
        for module, node in found
        if isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in node.bases)
        if any(isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "version" for line in node.body)
    }
    reading = {module for module, node in found if isinstance(node, ast.Call) and called(node) == "VersionedDecoder"}
    assert {f"{module}:{name}" for module, name in versioned if module not in reading} == set(NO_STORED_THING)
    with_versions = {module for module in modules() if "_VERSION" in (ROOT / module).read_text(encoding="utf-8")}
    comparing = {
        module
        for module, node in found
        if module in with_versions and isinstance(node, ast.Compare)
        if any(ast.unparse(side).endswith("_VERSION") for side in (node.left, *node.comparators))
    }
    assert comparing == COMPARES_VERSIONS, "`Format.check` tells known versions from others"


def calls_below_module_level(tree: ast.Module) -> Iterator[ast.Call]:
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, inside = left.pop()
        if inside and isinstance(node, ast.Call):
            yield node
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        left += [(child, inside) for child in children(node)]


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
