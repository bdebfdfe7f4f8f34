"""Rows that a sink keeps past a checkpoint, as values of the operator's snapshots."""

from collections.abc import Container, Mapping, Sequence

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OWN, FileRef, OperatorSnapshot

KEPT = f"{OWN}kept-"  # subtask i of P takes over the values of i % P


class KeptRows:
    """`values` runs on the pre-commit thread, all else on the loop."""

    def __init__(self, sink: TwoPhaseCommitSink, where: str) -> None:
        self._sink = sink
        self._where = where
        self._stored: Mapping[str, FileRef] = {}

    def restore(self, snapshots: Sequence[OperatorSnapshot], subtask: int, parallelism: int) -> None:
        """Raises `InvalidJob` if the sink would lose rows."""
        mine = [each for each in snapshots if each.subtask % parallelism == subtask]
        kept = [
            {name.removeprefix(KEPT): value for name, value in each.values.items() if name.startswith(KEPT)}
            for each in sorted(mine, key=lambda each: each.subtask)
        ]
        kept = [each for each in kept if each]
        if not kept:
            return
        if not self._sink.keeps_rows:
            raise InvalidJob(
                f"{self._where}: the checkpoint has rows of files that this sink had not finished, and a "
                f"{type(self._sink).__name__} cannot go on with them: give it another name and let the old sink finish "
                "its files first (stop the job with drain=True), or set allow_non_restored to drop these rows"
            )
        self._sink.restore_kept(kept, moved=any(each.parallelism != parallelism for each in snapshots))

    def stored(self) -> dict[str, FileRef]:
        """Values that a capture may need; a value that the pre-commit drops is listed once more."""
        if not self._stored:
            return {}
        needed = {f"{KEPT}{name}" for name in self._sink.kept_names()}
        return {name: ref for name, ref in self._stored.items() if name in needed}

    def values(self, stored: Container[str]) -> dict[str, bytes]:
        if not self._sink.keeps_rows:
            return {}
        names = _Stored(stored)
        return {f"{KEPT}{name}": value for name, value in self._sink.kept(names).items()}

    def on_stored(self, objects: Mapping[str, FileRef]) -> None:
        self._stored = {name: ref for name, ref in objects.items() if name.startswith(KEPT)}


class _Stored(Container[str]):
    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return f"{KEPT}{name}" in self._names
