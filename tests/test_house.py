"""The rules of the house that a tool can check: import directions, purity, doorways, docstrings, forbidden words."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("state", "coordinator", "barrier_runtime")
MAY_IMPORT = {
    "state": {"state"},
    "coordinator": {"state", "coordinator"},
    "barrier_runtime": {"state", "coordinator", "barrier_runtime"},
}
PURE = {
    "state/errors.py",
    "state/ids.py",
    "state/key_groups.py",
    "state/key_codec.py",
    "state/snapshot.py",
    "state/snapshot_plan.py",
    "state/restore_plan.py",
    "state/paths.py",
    "state/urls.py",
    "coordinator/messages.py",
    "coordinator/codec.py",
    "coordinator/handshake.py",
    "coordinator/options.py",
    "coordinator/manifest.py",
    "coordinator/log_records.py",
    "coordinator/decision_log.py",
    "coordinator/checkpoint.py",
    "coordinator/pending_checkpoints.py",
    "coordinator/commits.py",
    "coordinator/effects.py",
    "coordinator/events.py",
    "coordinator/failures.py",
    "coordinator/progress.py",
    "coordinator/progress_facts.py",
    "coordinator/restore_choice.py",
    "coordinator/retention.py",
    "coordinator/fsck.py",
    "coordinator/slots.py",
    "coordinator/job_protocol.py",
    "coordinator/lease.py",
    "coordinator/history.py",
    "coordinator/past_run.py",
    "barrier_runtime/elements.py",
    "barrier_runtime/graph.py",
    "barrier_runtime/alignment.py",
    "barrier_runtime/watermarks.py",
    "barrier_runtime/partitioning.py",
    "barrier_runtime/windows.py",
    "barrier_runtime/timers.py",
    "barrier_runtime/latency.py",
    "barrier_runtime/snapshot_values.py",
    "barrier_runtime/sinks/sink_driver.py",
    "barrier_runtime/sinks/sink_effects.py",
    "barrier_runtime/sinks/pending_set.py",
    "barrier_runtime/sinks/file_committable.py",
    "barrier_runtime/sinks/write_ahead_committable.py",
    "barrier_runtime/sinks/postgres_committable.py",
    "barrier_runtime/sinks/delta_committable.py",
    "barrier_runtime/sources/kafka_position.py",
    "barrier_runtime/operators/bloom.py",
    "barrier_runtime/slot/subtask.py",
    "barrier_runtime/slot/frames.py",
}
IMPURE = {
    *("socket", "time", "threading", "random", "uuid", "asyncio", "os", "subprocess", "secrets", "tempfile", "shutil"),
    *("boto3", "botocore", "rocksdict", "pyspark", "uvloop", "starlette", "uvicorn", "concurrent", "multiprocessing"),
}
DOORWAYS = {  # library -> the only places that may import it
    "boto3": ("state/s3_store.py",),
    "botocore": ("state/s3_store.py",),
    "mypy_boto3_s3": ("state/s3_store.py",),
    "rocksdict": ("state/rocksdb_kv.py",),
    "confluent_kafka": ("barrier_runtime/sinks/kafka_", "barrier_runtime/sources/kafka_"),
    "psycopg": ("barrier_runtime/sinks/postgres_session.py",),
    "deltalake": ("barrier_runtime/sinks/delta_table.py",),
    "pika": ("barrier_runtime/sources/rabbitmq_broker.py",),
    "redis": ("barrier_runtime/sinks/redis.py",),
    "pyspark": ("barrier_runtime/spark/",),
    "hdrh": ("barrier_runtime/latency.py", "coordinator/"),
    "starlette": ("coordinator/",),
    "uvicorn": ("coordinator/",),
    "typer": ("barrier_runtime/cli.py", "coordinator/"),
}
PICKLE_BY_WISH = {"barrier_runtime/keyed_state.py"}  # codec="pickle", which the user asks for by name
PICKLE_BELOW = "barrier_runtime/spark/"  # closures travel that way, inside Spark's own trust


def modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), module)


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Dotted names imported anywhere in the file, also inside functions, with their lines."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide the direction: write the full name"
            yield node.module or "", node.lineno


def test_imports_run_one_way() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in imports(module)
        if (top := name.split(".")[0]) in PACKAGES and top not in MAY_IMPORT[module.split("/")[0]]
    ]
    assert wrong == []


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
    """Files of ours that are loaded when `module` is: imports at the top level, not those for type checkers only."""
    for node in parsed(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            base = (node.module or "").replace(".", "/")
            submodules = [f"{base}/{alias.name}.py" for alias in node.names]
            candidates = [s for s in submodules if (ROOT / s).exists()] or [f"{base}.py", f"{base}/__init__.py"]
            yield from (candidate for candidate in candidates if (ROOT / candidate).exists())


def test_pure_files_touch_nothing_outside() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in sorted(PURE)
        for name, line in imports(module)
        if name.split(".")[0] in IMPURE
    ]
    assert wrong == []


def test_every_library_has_one_doorway() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for name, line in imports(module)
        if (top := name.split(".")[0]) in DOORWAYS and not module.startswith(DOORWAYS[top])
    ]
    assert wrong == []


def test_every_module_says_what_it_owns() -> None:
    folders = ("examples", "benchmarks", "tests")
    others = [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    silent = [module for module in [*modules(), *others] if not (ast.get_docstring(parsed(module)) or "").strip()]
    empty = [module for module in silent if (ROOT / module).read_text(encoding="utf-8").strip() == ""]
    assert sorted(set(silent) - {module for module in empty if module.endswith("__init__.py")}) == []


def test_nothing_is_unpickled_outside_sparks_closures() -> None:
    wrong = [
        f"{module}:{node.lineno}"
        for module in modules()
        if module not in PICKLE_BY_WISH and not module.startswith(PICKLE_BELOW)
        for node in ast.walk(parsed(module))
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


@pytest.mark.parametrize("module", PACKAGES)
def test_importing_the_package_loads_no_spark_and_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(' '.join(sorted(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.split(".")[0] for name in loaded} & {"pyspark", "boto3", "rocksdict", "starlette", "py4j"} == set()


def test_project_files_stand_on_their_own() -> None:
    """Nothing refers to a folder beside the repository or to how the project is being built."""
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
