"""Keys built by `Paths` and refused by `check_key`."""

import pytest

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.paths import Paths, check_key, check_prefix


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/./b",
        "a/../b",
        "../a",
        "a/..",
        "a\\b",
        "a\0b",
        "a\nb",
        "ä" * 513,
        "x" * 1025,
    ],
)
def test_a_key_that_could_leave_its_place_is_refused_with_the_reason(key: str) -> None:
    """B1"""
    with pytest.raises(InvalidJob, match="use a relative key"):
        check_key(key)


@pytest.mark.parametrize("key", ["a", "a/b", "a.b/c..d", "..a/b", "x" * 1024, "ä" * 512, "a b/c+d=e"])
def test_an_ordinary_key_passes_unchanged(key: str) -> None:
    """B1"""
    assert check_key(key) == key


def test_a_prefix_may_be_empty_or_end_with_a_slash_but_is_checked_otherwise() -> None:
    assert check_prefix("") == ""
    assert check_prefix("a/") == "a/"
    with pytest.raises(InvalidJob):
        check_prefix("../")
    with pytest.raises(InvalidJob):
        check_prefix("/")


def test_every_key_of_a_job_is_below_its_name_and_sorts_as_it_should() -> None:
    paths = Paths("flights-1")
    assert paths.log_record(7) == "flights-1/log/00000000000000000007.json"
    assert paths.manifest(12, 3) == "flights-1/checkpoints/12-3/manifest.json"
    assert paths.manifest(12, 3, "ab12") == "flights-1/checkpoints/12-3/manifest-ab12.json"
    assert paths.data_file(3, "slot", "file") == "flights-1/data/3/slot/file"
    assert sorted([paths.log_record(10), paths.log_record(9)]) == [paths.log_record(9), paths.log_record(10)]


def test_keys_tell_what_they_were_built_from_and_foreign_keys_tell_nothing() -> None:
    paths = Paths("a")
    assert paths.log_position(paths.log_record(41)) == 41
    assert paths.checkpoint_of(paths.manifest(5, 2)) == (5, 2)
    assert paths.data_token(paths.data_file(9, "s", "f")) == 9
    for key in ("b/log/00000000000000000001.json", "a/log/1.json", "a/data/x/y/z", "a/checkpoints/5/manifest.json"):
        assert paths.log_position(key) is None
        assert paths.checkpoint_of(key) is None
        assert paths.data_token(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "a/checkpoints/5-2/readme.txt",
        "a/checkpoints/5-2/manifest.json/more",
        "a/checkpoints/5-2/manifest.json.bak",
        "a/checkpoints/05-2/manifest.json",
        "a/checkpoints/\u0665-2/manifest.json",
        "a/data/9/notes.txt",
        "a/data/9/s/f/deeper",
        "a/data/09/s/f",
        "a/data/9/.hidden/f",
    ],
)
def test_what_lies_beside_ours_is_not_taken_for_ours(key: str) -> None:
    """S10: an object with a similar name is never deleted."""
    paths = Paths("a")
    assert paths.checkpoint_of(key) is None
    assert paths.data_token(key) is None


def test_a_manifest_that_was_written_again_is_ours() -> None:
    paths = Paths("a")
    assert paths.checkpoint_of(paths.manifest(5, 2, "second")) == (5, 2)


@pytest.mark.parametrize("part", ["", "..", "a/b", ".hidden", "a\\b", "%2e%2e", "x" * 129])
def test_no_part_of_a_key_can_smuggle_in_another_segment(part: str) -> None:
    """B1"""
    paths = Paths("a")
    for build in (
        lambda: paths.data_file(1, part, "f"),
        lambda: paths.data_file(1, "s", part),
        lambda: paths.manifest(1, 1, part),
    ):
        with pytest.raises(InvalidJob):
            build()


@pytest.mark.parametrize("job", ["", "Flights", "a/b", "..", "a" * 65, "a b"])
def test_a_job_whose_name_is_no_name_has_no_keys(job: str) -> None:
    with pytest.raises(InvalidJob):
        Paths(job)


def test_negative_numbers_are_no_positions_tokens_or_checkpoints() -> None:
    paths = Paths("a")
    for build in (lambda: paths.log_record(-1), lambda: paths.manifest(-1, 0), lambda: paths.data_token_prefix(-1)):
        with pytest.raises(InvalidJob):
            build()
