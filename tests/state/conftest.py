"""Fixtures of the state tests: a bench per backend kind, and all object stores as one parametrised fixture."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barrier_runtime.state.store.object_store import ObjectStore

sys.path.insert(0, str(Path(__file__).parent))  # backend_bench

from backend_bench import Bench

from tests import cloud_emulators
from tests.state.store.s3_script import Script


@pytest.fixture(params=["rocksdb", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, kind=request.param)


@pytest.fixture
def rocksdb_bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


_SLOW = [pytest.param(cloud, marks=pytest.mark.slow) for cloud in ("abfss", "gs")]


@pytest.fixture(params=["memory", "local", "s3", "boto3", *_SLOW])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    from barrier_runtime.state.store.local import LocalStore
    from barrier_runtime.state.store.memory import MemoryStore
    from barrier_runtime.state.store.open import open_store

    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "objects")
    if request.param == "abfss":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", cloud_emulators.AZURITE_KEY)
        return open_store(cloud_emulators.azure_container(request.getfixturevalue("azure_emulator")))
    if request.param == "gs":
        return open_store(request.getfixturevalue("google_emulator").bucket())
    s3_url: Callable[[str], str] = request.getfixturevalue("s3_url")
    return open_store(s3_url("some/prefix") + ("&client=boto3" if request.param == "boto3" else ""))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "canary-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    script = Script()
    yield script
    script.close()
