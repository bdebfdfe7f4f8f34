"""Snapshots of earlier releases do not state the kind of a step: tables and values identify the kind, and another kind
is refused.
"""

from pathlib import Path

import pytest

from barrier_runtime.coordinator.log.kinds import changed_kind
from barrier_runtime.coordinator.wire.messages import ChainSpec
from barrier_runtime.state.snapshots.snapshot import COLUMN_TYPES, KIND, TARGET
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.unpacked import unpack

HERE = Path(__file__).resolve().parent
KINDS = {
    "fixed": "source: JSONL files",
    "watched": "source: JSONL files",
    "windows": "window",
    "running": "running aggregate",
    "quiet": "process",
    "once": "deduplicate",
    "windows-out": "sink: jsonl",
    "running-out": "sink: csv",
    "quiet-out": "sink: jsonl",
    "once-out": "sink: jsonl",
}


@pytest.mark.parametrize("release", ["f69d69f-aligned", "f69d69f-unaligned"])
def test_what_an_earlier_release_stored_is_of_the_kinds_it_was_and_of_no_other(release: str, tmp_path: Path) -> None:
    unpack(HERE / f"{release}.tar.xz", tmp_path)
    manifest = find_checkpoint(str(tmp_path / "checkpoints"), "stored").manifest
    assert {each.operator for each in manifest.operators if not each.is_empty} == set(KINDS)
    taken = {name: {*KINDS.values(), "map"} for name in KINDS}  # accepted by all snapshots of the step
    for snapshot in manifest.operators:
        assert snapshot.values.keys().isdisjoint((KIND, TARGET, COLUMN_TYPES))
        for kind in tuple(taken[snapshot.operator]):
            if changed_kind(_chains(snapshot.operator, kind), snapshot) is not None:
                taken[snapshot.operator].discard(kind)
    for name, kind in KINDS.items():
        alike = {"sink: jsonl", "sink: csv"} if kind.startswith("sink") else {kind}
        assert kind in taken[name] <= alike, "a sink of another kind goes on where nothing is pending"
    assert taken["running-out"] == {"sink: csv"}, "there is something"


def _chains(operator: str, kind: str) -> tuple[ChainSpec, ...]:
    """A job whose step of that name is of that kind."""
    names = () if kind == "map" else (operator,)
    sinks = names if kind.startswith("sink") else ()
    return (ChainSpec(0, (operator,), stateful=() if sinks else names, sinks=sinks, kinds={operator: kind}),)
