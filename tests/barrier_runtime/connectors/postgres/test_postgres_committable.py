"""Committables and names of the PostgreSQL sink: what is taken for ours, what is refused, what may be dropped."""

import msgspec
import pytest

from barrier_runtime.connectors.postgres.committable import (
    COMMITTABLE_VERSION,
    Names,
    PostgresCommittable,
    decode_committable,
    encode_committable,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob

NAMES = Names("job", "out", "lineage-1", "file:///checkpoints", 7, 1, "ab12cd34")


def committable(**changes: object) -> PostgresCommittable:
    made = PostgresCommittable(
        COMMITTABLE_VERSION,
        transactions="staged",
        job="job",
        sink="out",
        lineage="lineage-1",
        token=7,
        subtask=1,
        checkpoint=12,
        target="public.numbers",
        columns=("id", "value"),
        name=NAMES.batch(3),
        sizes=(10, 20),
        rows=5,
    )
    return msgspec.structs.replace(made, **changes)


def decoded(data: bytes, job: str = "job", sink: str = "out", target: str = "public.numbers") -> PostgresCommittable:
    return decode_committable(data, job, sink, "staged", target, "here")


def test_what_was_encoded_comes_back() -> None:
    assert decoded(encode_committable(committable())) == committable()


def test_a_gid_is_short_enough_for_the_longest_names() -> None:
    names = Names("j" * 64, "s" * 64, "l" * 64, "s3://" + "b" * 500, 2**63, 1023, "ab12cd34")
    assert len(names.gid(10**18).encode()) < 200


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "other"},
        {"sink": "other"},
        {"name": "8-1-ab12cd34-3"},
        {"name": "7-0-ab12cd34-3"},
        {"name": "7-1-ab12cd34-3' or true"},
        {"transactions": "prepared"},
        {"transactions": "prepared", "name": "somebody-elses-transaction"},
        {"transactions": "prepared", "name": NAMES.gid(13)},
    ],
)
def test_a_name_that_does_not_fit_the_rest_is_refused(changes: dict[str, object]) -> None:
    """What is committed is moved and what is aborted is deleted: neither may ever happen to anything else."""
    with pytest.raises(Corrupt, match="nothing was committed or deleted"):
        decoded(encode_committable(committable(**changes)))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"{}", b'{"version": 1}', b'{"version": "1"}'])
def test_what_is_no_committable_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt, match="not readable"):
        decoded(data)


def test_a_committable_of_another_release_is_refused_by_its_version() -> None:
    with pytest.raises(InvalidJob, match="version 2, this release reads 1"):
        decoded(b'{"version": 2, "something": "new"}')


def test_decided_rows_do_not_move_to_another_table_because_the_job_was_changed() -> None:
    with pytest.raises(InvalidJob, match=r"decided 5 rows for table public\.numbers .* has public\.other"):
        decoded(encode_committable(committable()), target="public.other")
    prepared = committable(transactions="prepared", name=NAMES.gid(12))
    with pytest.raises(InvalidJob, match=r"transactions='prepared'; the sink now has public\.numbers and trans"):
        decoded(encode_committable(prepared))


@pytest.mark.parametrize(
    ("maker", "parallelism", "is_orphan"),
    [
        (Names("job", "out", "lineage-1", "file:///checkpoints", 6, 1, "a"), 2, True),
        (Names("job", "out", "lineage-1", "file:///moved", 6, 3, "a"), 2, True),  # 3 % 2 == 1
        (Names("job", "out", "lineage-0", "file:///checkpoints", 6, 1, "a"), 2, True),  # an earlier start
        (Names("job", "out", "lineage-0", "file:///elsewhere", 6, 1, "a"), 2, False),  # another job of the same name
        (Names("job", "out", "lineage-1", "file:///checkpoints", 6, 0, "a"), 2, False),  # subtask 0's to finish
        (Names("job", "out", "lineage-1", "file:///checkpoints", 7, 1, "a"), 2, False),  # our own generation
        (Names("job", "out", "lineage-1", "file:///checkpoints", 8, 1, "a"), 2, False),  # our successor's
        (Names("job", "other", "lineage-1", "file:///checkpoints", 6, 1, "a"), 2, False),
        (Names("other", "out", "lineage-1", "file:///checkpoints", 6, 1, "a"), 2, False),
    ],
)
def test_only_what_an_older_generation_of_this_very_sink_prepared_is_left_over(
    maker: Names, parallelism: int, is_orphan: bool
) -> None:
    """T8, T9"""
    assert NAMES.is_orphan(maker.gid(5), parallelism) == is_orphan


def test_a_prepared_transaction_of_somebody_else_is_never_left_over() -> None:
    for gid in ("", "barrier_runtime:", "their_gid", NAMES.gid_prefix + "x"):
        assert not NAMES.is_orphan(gid, 1)
