"""Fixtures of the state tests: a workbench per backend kind, and each object store behind one name."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from barrier_runtime.state.store.object_store import ObjectStore

sys.path.insert(0, str(Path(__file__).parent))  # backend_bench

from backend_bench import Bench


@pytest.fixture(params=["rocksdb", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, kind=request.param)


@pytest.fixture
def rocksdb_bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(params=["memory", "local", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    from barrier_runtime.state.store.local import LocalStore
    from barrier_runtime.state.store.memory import MemoryStore
    from barrier_runtime.state.store.open import open_store

    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "objects")
    s3_url: Callable[[str], str] = request.getfixturevalue("s3_url")
    return open_store(s3_url("some/prefix"))
