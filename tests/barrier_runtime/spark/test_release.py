"""A PySpark that is too old is refused in one sentence."""

import pytest

from barrier_runtime.spark.frame_source import FROM_SPARK, refusal


@pytest.mark.parametrize("found", ["3.5.9", "4.0.5", "4.1.4"])
def test_an_older_release_is_refused_with_versions_and_remedy(found: str) -> None:
    assert refusal("from_spark", found, FROM_SPARK) == (
        f"from_spark: PySpark {found} is installed, 4.2 or newer is needed: pip install 'pyspark>=4.2,<5'"
    )


@pytest.mark.parametrize("found", ["4.2.1", "4.3.0", "4.10.0", "5.0.0.dev1"])
def test_a_newer_release_is_not_refused(found: str) -> None:
    assert refusal("from_spark", found, FROM_SPARK) is None
