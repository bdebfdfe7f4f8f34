"""State of a job that is started from a savepoint, from another savepoint, and from the first again."""

import msgspec

from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.savepoint_files import read_savepoint
from barrier_runtime.coordinator.savepoint_import import begin_with_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.paths import Paths

Content = list[tuple[object, ...]]


def restored_in_turn(store: MemoryStore, spec: JobSpec, urls: tuple[str, str]) -> str:
    """Returns the first difference between restored state and savepoint after three starts; "" without one."""
    for number, url in enumerate((urls[0], urls[1], urls[0])):
        start = msgspec.structs.replace(spec, run_id=f"restored-{number}", allow_replay=True, allow_drained=True)
        begin_with_savepoint(store, url, start, "no_claim", now_ms=store.now_ms, sleep=lambda seconds: None)
        wanted, found = read_savepoint(url).taken, _newest(store, Paths(spec.job))
        if _content(found) != _content(wanted):
            begun = f"begun with {url}, after {', '.join(urls[:number]) or 'its own checkpoints'}"
            return f"{begun}, the job has other state than the savepoint of checkpoint {wanted.checkpoint}"
    return ""


def _newest(store: MemoryStore, paths: Paths) -> Manifest:
    manifest = load_manifest(complete_of(read_log(store, paths).completes[0]), store.get)
    assert manifest is not None
    return manifest


def _content(manifest: Manifest) -> Content:
    """Returns the state in the manifest, without the places where files are stored."""
    return sorted(
        (
            each.operator,
            each.subtask,
            sorted(each.values.items()),
            sorted((name, ref.sha256) for name, ref in each.objects.items()),
            sorted((ref.name, ref.sha256) for ref in each.files),
        )
        for each in manifest.operators
    )
