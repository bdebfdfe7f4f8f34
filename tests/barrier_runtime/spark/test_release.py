"""A PySpark that is too old, or too old for this Python, is refused in one sentence."""

import pytest

from barrier_runtime.spark.session import OLDEST, refusal


@pytest.mark.parametrize("found", ["3.4.4", "2.4.8"])
def test_an_older_release_is_refused_with_versions_and_remedy(found: str) -> None:
    assert refusal("this Spark session", found, OLDEST, (3, 11))[0] == (
        f"this Spark session: PySpark {found} is installed, 3.5 or newer is needed: pip install 'pyspark>=3.5,<5'"
    )


def test_a_capability_names_its_own_oldest_release() -> None:
    assert refusal("this", "3.5.9", (4, 0), (3, 11))[0].startswith("this: PySpark 3.5.9 is installed, 4.0 or newer")


def test_spark_three_is_refused_on_a_python_that_it_does_not_know() -> None:
    assert refusal("job a", "3.5.9", OLDEST, (3, 12))[0] == (
        "job a: PySpark 3.5.9 runs on Python 3.11 or older, this is Python 3.12: use Python 3.11, or pip install "
        "'pyspark>=4.0,<5'"
    )


@pytest.mark.parametrize("found", ["3.5.9", "4.0.5", "4.2.1", "4.3.0", "4.10.0", "5.0.0.dev1"])
def test_a_newer_release_is_not_refused(found: str) -> None:
    major, minor = (int(part) for part in found.split(".")[:2])
    assert refusal("from_spark", found, OLDEST, (3, 11)) == ("", (major, minor))
