"""Names that are too long for a store are refused before any decision."""

from pathlib import Path

import pytest

from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import too_long

FILE = "part-00000001-0-1-0.parquet"


@pytest.fixture
def stores(tmp_path: Path, s3_endpoint: str) -> dict[str, ObjectStore]:
    return {
        "folder": open_store(str(tmp_path)),
        "webhdfs": open_store("webhdfs://node:9870/data"),
        "s3": open_store(f"s3://bucket/{'p' * 100}?endpoint={s3_endpoint}"),
        "memory": MemoryStore(),
    }


def test_a_file_system_bounds_each_name_and_a_store_the_whole_key(stores: dict[str, ObjectStore]) -> None:
    for name in ("folder", "webhdfs"):
        assert too_long(f"k={'x' * 253}/{FILE}", stores[name]) == ""
        assert "has a name of 256 bytes, and 255 are allowed" in too_long(f"k={'x' * 254}/{FILE}", stores[name])
        assert "has a name of 258 bytes" in too_long(f"k={'ü' * 128}/{FILE}", stores[name])
    for name, most in (("s3", 1_024 - 101), ("memory", 1_024)):
        folder = "k=" + "x" * (most - len(FILE) - 3)
        assert too_long(f"{folder}/{FILE}", stores[name]) == ""
        assert "has a key of 1025 bytes, and 1024 are allowed" in too_long(f"{folder}x/{FILE}", stores[name])
        assert "has a key of" in too_long("a=" + "/b=".join(["x" * 300] * 4) + f"/{FILE}", stores[name])
