"""What `explain` says of each operator's state before a start restores it."""

import pytest
from coordinator_world import CHAINS, spec

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.restore_diff import RestoreDiff
from barrier_runtime.coordinator.wire.messages import ChainSpec
from barrier_runtime.state.snapshots.snapshot import DEFINITION, KEYS, OperatorSnapshot


def lines(values: dict[str, bytes], **of_the_job: dict[str, str]) -> RestoreDiff:
    """Of a job whose operator `count` has these keys or definitions, and a checkpoint with `values` of it."""
    counting = next(chain for chain in CHAINS if "count" in chain.operators)
    chain = ChainSpec(counting.chain, ("count",), ("count",), is_source=True, **of_the_job)
    job = spec(chains=(chain,), parallelism=1)
    snapshot = OperatorSnapshot(operator="count", subtask=0, parallelism=1, values={"value": b"x", **values})
    manifest = Manifest(
        job=job.job,
        lineage="first",
        checkpoint=1,
        token=1,
        created_wall_ms=0,
        parallelism=1,
        max_parallelism=job.max_parallelism,
        operators=(snapshot,),
        parent_position=1,
        parent_sha256="",
    )
    return RestoreDiff(job, manifest, "checkpoint 1")


@pytest.mark.parametrize(
    ("values", "job", "said"),
    [
        ({}, {}, "matched"),
        ({KEYS: b"k: int64"}, {"keys": {"count": "k: int64"}}, "matched"),
        ({KEYS: b"k: int64"}, {}, "matched"),
        ({KEYS: b""}, {"keys": {"count": "k: int64"}}, "matched"),
        ({KEYS: b"k: int64"}, {"keys": {"count": "k: string"}}, "refused, its key changed"),
        ({DEFINITION: b"tumbling 1 s"}, {"definitions": {"count": "tumbling 1 s"}}, "matched"),
        ({}, {"definitions": {"count": "tumbling 1 s"}}, "matched"),
        ({DEFINITION: b"tumbling 1 s"}, {"definitions": {"count": "tumbling 5 s"}}, "refused, its definition changed"),
        ({DEFINITION: b"tumbling 1 s"}, {}, "refused, its definition changed"),
    ],
)
def test_state_that_a_start_would_refuse_is_not_called_matched(
    values: dict[str, bytes], job: dict[str, dict[str, str]], said: str
) -> None:
    diff = lines(values, **job)
    assert diff.lines == (f"count: {said}",)
    assert bool(diff.refused) == (said != "matched")
