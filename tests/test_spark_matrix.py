"""`make matrix` and docs/compatibility.md name the same pairs, and every pair is some commit's."""

import re
import sys
from pathlib import Path

from barrier_runtime.spark.session import OLDEST
from tests.spark_matrix import EVERYWHERE, PAIRS, RELEASES, chosen, commit_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def test_commits_choose_each_pair_that_no_other_test_uses() -> None:
    commits = [f"{number:08x}" + 32 * "0" for number in range(100)]
    assert {chosen(commit, (3, 11)) for commit in commits} == set(PAIRS) - {EVERYWHERE}
    assert {chosen(commit, (3, 12)) for commit in commits} == set(PAIRS) - {EVERYWHERE, ("3.5", 17)}


def test_a_tree_without_git_has_a_fixed_pair(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
    assert chosen("", (3, 12)) == ("4.0", 17)


def test_the_documented_matrix_is_the_tested_one() -> None:
    rows = re.findall(r"^\| (\d\.\d) \(\S+\) \| (.+?) \|", (ROOT / "docs/compatibility.md").read_text(), re.MULTILINE)
    assert [(spark, int(java)) for spark, javas in rows for java in javas.split(", ")] == PAIRS


def test_the_oldest_release_is_the_one_that_can_be_installed() -> None:
    (spark, *_) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    assert spark == f"pyspark>={next(iter(RELEASES))},<5"
    assert f"{OLDEST[0]}.{OLDEST[1]}" == next(iter(RELEASES))
