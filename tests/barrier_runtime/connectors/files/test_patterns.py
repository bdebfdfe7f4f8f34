"""Patterns of paths mean the same for local folders and stores; ignored files are counted."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.connectors.files.paths import PathPattern
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.listing import find_files, would_find
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

TREE = (
    *("a.txt", "b.txt", "ab.txt", "n.csv", "[1].txt", "_h.txt", ".d.txt"),
    *("x/a.txt", "x/c.txt", "x/n.csv", "x/y/a.txt", "x/y/z/d.txt", "y/a.txt", "xx/e.txt"),
    *("_staging/a.txt", "x/_staging/s.txt", "x/.t/a.txt", "_day=1/k.txt", "x/_day=2/k.txt"),
)
PATTERNS = {  # pattern: files read by a source of `.txt` files
    "*.txt": {"a.txt", "b.txt", "ab.txt", "[1].txt"},
    "?.txt": {"a.txt", "b.txt"},
    "[ab].txt": {"a.txt", "b.txt"},
    "[!a].txt": {"b.txt"},
    "[a-b]*.txt": {"a.txt", "b.txt", "ab.txt"},
    "*/a.txt": {"x/a.txt", "y/a.txt"},
    "x/*.txt": {"x/a.txt", "x/c.txt"},
    "x*/?.txt": {"x/a.txt", "x/c.txt", "xx/e.txt"},
    "x/*": {"x/a.txt", "x/c.txt", "x/n.csv", "x/y/a.txt", "x/y/z/d.txt", "x/_day=2/k.txt"},
    "**/a.txt": {"a.txt", "x/a.txt", "x/y/a.txt", "y/a.txt"},
    "x/**/a.txt": {"x/a.txt", "x/y/a.txt"},
    "x/**/d.txt": {"x/y/z/d.txt"},
    "**/y/*.txt": {"x/y/a.txt", "y/a.txt"},
    "**/**/d.txt": {"x/y/z/d.txt"},
    "[_]h.txt": set(),
    "_*.txt": {"_h.txt"},
    ".*.txt": {".d.txt"},
    "_day=*/k.txt": {"_day=1/k.txt"},
    "**/k.txt": {"_day=1/k.txt", "x/_day=2/k.txt"},
    "x/y*": {"x/y/a.txt", "x/y/z/d.txt"},
    "[[]1].txt": {"[1].txt"},
    "[1].txt": {"[1].txt"},  # a file has that very name
}


def found(place: str, root: str) -> set[str]:
    """Returns the paths below `root` of the files found."""
    try:
        return {file.path.removeprefix(root) for file in find_files(place, (".txt",), "test")}
    except InvalidJob:
        return set()


def test_a_pattern_names_these_files_of_a_folder(tmp_path: Path) -> None:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert {pattern: found(f"{tmp_path}/{pattern}", f"{tmp_path}/") for pattern in PATTERNS} == PATTERNS
    assert found(f"file://{tmp_path}/x/**/a.txt", f"{tmp_path}/") == PATTERNS["x/**/a.txt"]


@pytest.mark.slow
def test_a_pattern_names_the_same_objects_of_a_bucket(s3_url: Callable[[str], str], s3_endpoint: str) -> None:
    import boto3

    client, bucket = boto3.client("s3", endpoint_url=s3_endpoint), s3_url("x").split("/")[2]
    for name in TREE:
        client.put_object(Bucket=bucket, Key=f"in/{name}", Body=b"x")
    root = f"s3://{bucket}/in/"
    seen = {pattern: found(f"{root}{pattern}?endpoint={s3_endpoint}", root) for pattern in PATTERNS}
    assert seen == PATTERNS


SEGMENTS = st.sampled_from(["a", "b", "ab", "_a", ".a", "a*", "*", "?", "**", "[ab]"])
NAMES = st.lists(st.sampled_from(["a", "b", "ab", "_a", ".a", "_a=b"]), min_size=1, max_size=4)


@examples(200)
@given(segments=st.lists(SEGMENTS, max_size=4).filter(lambda each: any(c in "".join(each) for c in "*?[")), path=NAMES)
def test_a_folder_is_walked_where_a_file_below_it_may_match(segments: list[str], path: list[str]) -> None:
    pattern = PathPattern("", tuple(segments))
    if pattern.matched(path) == len(path):
        for depth in range(1, len(path)):
            assert pattern.leads_to(path[:depth]) or pattern.matched(path[:depth])


def test_what_is_passed_over_is_said_once_with_an_example(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("in/a.jsonl", "in/_b.jsonl", "in/readme.md", "elsewhere/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"n": 1}\n')
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "gone.jsonl").symlink_to(tmp_path / "nothing")
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
    with caplog.at_level(logging.WARNING, "barrier_runtime.files"):
        source = JsonlFiles("src", str(tmp_path / "in"), None, None)
    (message,) = caplog.messages
    for text in ("links to folders: 2 (such as", "hidden names: 1", "other endings: 1", "links to nothing: 1"):
        assert text in message
        assert text in repr(source)
    assert [file.id for file in source.files] == ["a.jsonl"]


def test_a_link_to_a_folder_is_followed_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("x")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "real")
    for place in ("in/link", "in/link/*.txt", "in/*/a.txt", "in/l*/a.txt"):
        assert len(find_files(f"{tmp_path}/{place}", (".txt",), "test")) == 1
    for place in ("in", "in/**/a.txt"):
        with pytest.raises(InvalidJob, match="links to folders: 1"):
            find_files(f"{tmp_path}/{place}", (".txt",), "test")


def test_files_of_one_name_in_several_folders_are_read(tmp_path: Path) -> None:
    for number, name in enumerate(("a.jsonl", "x/a.jsonl", "x/y/a.jsonl")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{{"n": {number}}}\n')
    source = JsonlFiles("src", f"{tmp_path}/**/*.jsonl", None, None)
    assert sorted(row["n"] for row in rows_of(drained(opened(spec_of(source), World())))) == [0, 1, 2]
    assert [file.id for file in source.files] == ["./a.jsonl", "x/a.jsonl", "x/y/a.jsonl"]


def pattern_of_two_folders(tmp_path: Path) -> JsonlFiles:
    for number, name in enumerate(("x/a.jsonl", "y/b.jsonl")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{{"n": {number}}}\n{{"n": {number + 10}}}\n')
    return JsonlFiles("src", f"{tmp_path}/*/*.jsonl", None, None)


def as_before(spec: SourceSpec) -> SourceSpec:
    """With the ids of earlier releases, which are the files' names only."""
    return replace(spec, splits=tuple(replace(split, id=split.formerly, formerly="") for split in spec.splits))


def test_a_checkpoint_of_an_earlier_release_knows_files_by_their_names(tmp_path: Path) -> None:
    spec, world = spec_of(pattern_of_two_folders(tmp_path)), World()
    assert [split.id for split in spec.splits] == ["x/a.jsonl", "y/b.jsonl"]
    driver = opened(as_before(spec), world)
    first = [batch for batch in (driver.poll(0, 1), driver.poll(0, 1), driver.poll(0, 1)) if batch is not None]
    later = opened(spec, world, (snapshot_of(driver, world),))
    rows = rows_of([*first, *drained(later)])
    assert sorted(row["n"] for row in rows) == [0, 1, 10, 11]


def test_a_second_file_of_a_name_that_a_checkpoint_knows_is_refused(tmp_path: Path) -> None:
    world = World()
    driver = opened(as_before(spec_of(pattern_of_two_folders(tmp_path))), world)
    drained(driver)
    snapshot = snapshot_of(driver, world)
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "a.jsonl").write_text('{"n": 5}\n')
    again = JsonlFiles("src", f"{tmp_path}/*/*.jsonl", None, None)
    with pytest.raises(InvalidJob, match="several files of that name in different folders"):
        opened(spec_of(again), world, (snapshot,))


@pytest.mark.parametrize(
    ("paths", "place", "found"),
    [
        ("s3://b/in", "s3://b/in/part-1.txt", True),
        ("s3a://b/in/", "s3://b/in/k=v/part-1.txt", True),
        ("s3://b/in/**/*.txt?endpoint=http://h", "s3://b/in/x/part-1.txt?endpoint=http://h", True),
        ("s3://b/in?endpoint=http://h", "s3://b/in/part-1.txt?endpoint=http://other", False),
        ("s3://b/in", "s3://b/input/part-1.txt", False),
        ("s3://b/in", "s3://b/in/part-1.csv", False),
        ("s3://b/in", "s3://b/in/_hidden/part-1.txt", False),
        ("s3://b/in/*.txt", "s3://b/in/x/part-1.txt", False),
        ("s3://b/in", "memory://b/in/part-1.txt", False),
        ("s3://b/in", "delta:s3://b/in/", False),
        ("/in", "s3://b/in/part-1.txt", False),
        (["s3://b/x", "gs://b/in"], "gs://b/in/part-1.txt", True),
    ],
)
def test_a_source_knows_whether_it_would_read_a_file(paths: str | list[str], place: str, found: bool) -> None:
    assert would_find(paths, (".txt",), "test", place) is found


def test_a_hidden_file_that_a_pattern_passes_over_is_told_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.jsonl", "_b.jsonl", ".c.jsonl", "_SUCCESS", "_other.csv"):
        (tmp_path / name).write_text('{"n": 1}\n')
    source = JsonlFiles("rows", f"{tmp_path}/*.jsonl", None, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "passed over: names with . or _ in front, which wildcards do not match: 2 (such as" in caplog.text
    assert source.passed_over == 2
    caplog.clear()
    for pattern in ("a*.jsonl", "_b*.jsonl"):
        JsonlFiles("rows", f"{tmp_path}/{pattern}", None, None)
    assert caplog.records == []
