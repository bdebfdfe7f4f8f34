"""Content of Spark's closure, and the check that the content can be pickled.

Spark's own error lacks the operator's name.
"""

import hashlib
import io
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec

from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.operators.uncopyable import uncopyable
from barrier_runtime.state.errors import InvalidJob, missing_extra


def check_travels(graph: JobGraph) -> None:
    """Raises `InvalidJob` for the first source or operator that cannot be pickled."""
    cloudpickle = _cloudpickle()
    for chain in graph.chains:
        parts: list[tuple[str, Any]] = [(operator.name, operator) for operator in chain.operators]
        if chain.source is not None:
            parts.insert(0, (chain.source.name, chain.source))
        for name, part in parts:
            try:
                cloudpickle.dumps(part)
            except InvalidJob as error:
                raise InvalidJob(f"operator {name!r}: {error}") from error
            except Exception as error:
                found = uncopyable(part) or "something, such as a lock, a connection or an open file"
                raise InvalidJob(
                    f"operator {name!r} cannot be sent to Spark's workers ({error}): its function refers to {found}, "
                    "that cannot be copied: make that inside the function, or in open()"
                ) from error


def pickled(graph: JobGraph) -> bytes:
    """Call `check_travels` before, whose errors name the operator."""
    dumped: bytes = _cloudpickle().dumps(graph)
    return dumped


def fingerprint(graph: JobGraph, spec: JobSpec) -> str:
    modules: set[str] = set()

    class Pickler(_cloudpickle().CloudPickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, FunctionType | type):
                modules.add(value.__module__)
            return super().reducer_override(value)

    Pickler(io.BytesIO()).dump(graph)
    found = hashlib.sha256(msgspec.json.encode(spec.chains, order="deterministic"))
    files = {_source_file(name) for name in modules} - {None}
    for digest in sorted(hashlib.sha256(file.read_bytes()).digest() for file in files if file is not None):
        found.update(digest)
    return found.hexdigest()[:32]


def _source_file(module: str) -> Path | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None or module.partition(".")[0] in (*sys.stdlib_module_names, "barrier_runtime"):
        return None
    file = Path(path)
    return file if "site-packages" not in file.parts and file.is_file() else None


def ship_by_value(module: ModuleType) -> None:
    """Pickles functions and classes of a user's `module` by value: no worker can import the module."""
    _cloudpickle().register_pickle_by_value(module)


def _cloudpickle() -> Any:
    try:
        from pyspark import cloudpickle
    except ImportError:
        return _cloudpickle_alone()
    return cloudpickle


def _cloudpickle_alone() -> Any:
    """Works without Spark."""
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise missing_extra("a job with slots in other processes", "coordinator", error) from None
