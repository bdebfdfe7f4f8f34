"""Planted bugs in restores: files and state taken over from the restored checkpoint."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from canaries import _replaced, canary

from barrier_runtime.coordinator.checkpoints import retention
from barrier_runtime.state.backend import keyed_backend, restore
from barrier_runtime.state.kv.key_ranges import RANGES_FILE, KeyRanges
from barrier_runtime.state.kv.side_by_side import SideBySide
from barrier_runtime.state.snapshots import plan as snapshot_plan
from barrier_runtime.state.store.paths import Paths


@canary(
    "new-files-are-taken-for-restored", "what a restore has written anew is named as the stored files of these names"
)
def _new_files_are_taken_for_restored() -> Iterator[None]:
    """Affects copied entries and partly restored segments. Compares names only: equal sizes are rare."""

    def make(original: Any) -> Any:
        def restored(kind: str, plan: Any, site: Any) -> Any:
            opened = original(kind, plan, site)
            return restore.Opened(opened.kv, tuple(ref for part in plan.parts for ref in part.keyed.files))

        return restored

    def confirmed(file: Any, known: Any) -> bool:
        return snapshot_plan.is_immutable(file.name) and file.name in known

    with _replaced(keyed_backend, "restore", make), patch.object(snapshot_plan, "_is_confirmed", confirmed):
        yield


@canary("restored-files-go-with-their-generation", "once a generation has decided, files of earlier ones are deleted")
def _restored_files_go() -> Iterator[None]:
    def make(original: Any) -> Any:
        def resolved(self: Any, open_ids: Any, held: Any = ()) -> Any:
            dropped = {key for each in self._dropped for key in each.kept.files}
            made = original(self, open_ids, held)
            token = Paths("bank").data_token
            newest = max((token(key) or 0 for each in self.kept for key in each.files), default=0)
            earlier = {key for key in dropped if (token(key) or 0) < newest}
            return retention.SweepPlan(made.manifests, tuple(sorted({*made.files, *earlier})))

        return resolved

    with _replaced(retention.Retention, "resolved", make):
        yield


@canary("boundary-is-not-in-the-snapshot", "where databases side by side meet is stored as it was at the restore")
def _boundary_is_not_stored() -> Iterator[None]:
    opened: dict[int, KeyRanges] = {}

    def make_init(original: Any) -> Any:
        def init(self: Any, first: Any, others: Any, ranges: Any) -> None:
            original(self, first, others, ranges)
            opened[id(self)] = ranges

        return init

    def make(original: Any) -> Any:
        def checkpoint(self: Any, directory: Any) -> None:
            original(self, directory)
            if (directory / RANGES_FILE).exists():
                (directory / RANGES_FILE).write_bytes(opened[id(self)].stored())

        return checkpoint

    with _replaced(SideBySide, "__init__", make_init), _replaced(SideBySide, "checkpoint", make):
        yield
