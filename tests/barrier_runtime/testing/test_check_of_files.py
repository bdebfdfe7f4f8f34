"""`check` of flows whose sources read files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, CsvSource, Dataflow, JsonlSource, ParquetSource
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.testing import check

SCHEMA = {"k": str, "v": int}
ROWS = [{"k": "a", "v": n} for n in range(6)]


def building(source: Callable[[], Any]) -> Callable[[], Dataflow]:
    def build() -> Dataflow:
        flow = Dataflow("files")
        flow.source("events", source()).sink("out", CollectSink())
        return flow

    return build


@pytest.mark.parametrize("kind", [JsonlSource, CsvSource, ParquetSource])
@pytest.mark.parametrize("options", [{}, {"watch": 1.0}])
def test_check_needs_no_files_of_a_source_with_a_schema(kind: Any, options: dict[str, Any], tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        build = building(lambda place=place: kind(str(place), schema=SCHEMA, **options))
        done = check(build, {"events": ROWS}, parallelism=1, crashes="none")
        assert done.rows == {"out": 6}
    with pytest.raises(InvalidJob, match="nowhere"):
        build()


def test_check_without_schema_or_files_names_the_remedy(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidJob, match=r"check\(\) needs files only to guess types: pass schema="):
            check(building(lambda place=place: JsonlSource(str(place))), {"events": ROWS}, parallelism=1)
