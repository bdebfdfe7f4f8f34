"""Laws of the decision log: required content of a record, given the records before it. Pure.

The writer (`DecisionLog`) refuses a record that breaks a law, and `fsck` reports each broken law of a stored log. Both
know the log only as far as they have read it; a law is not judged if its facts are unknown. The hash chain is separate:
code that has the bytes compares `parent_sha256`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from barrier_runtime.coordinator.log.records import FIRST_POSITION, NO_RECORD, Complete, Fence, Finish, Record
from barrier_runtime.state.store.paths import Paths


@dataclass(frozen=True)
class BrokenLaw:
    expected: str
    found: str


@dataclass(frozen=True)
class Before:
    """The log before the record at `position`. None, or a False `*_known`: unknown."""

    job: str
    position: int
    token: int | None  # of the previous record
    prior_complete: int | None  # required back link of the record
    fence: Fence | None  # the newest FENCE
    fence_known: bool  # no newer FENCE can have been missed
    finish: Finish | None  # the previous record, if it is a FINISH
    checkpoint_floor: int
    kept: frozenset[int] | None  # positions that the newest FENCE or COMPLETE lists as kept
    checkpoint_at: Callable[[int], int | None]  # checkpoint that an earlier record decides; 0: none


def broken_laws(before: Before, record: Record) -> Iterator[BrokenLaw]:
    position, what = before.position, type(record).__name__.upper()
    token = position if isinstance(record, Fence) else before.token
    if token is not None:
        yield from _equal("token", token, record.token, " (of the last FENCE, its position)")
    if before.prior_complete is not None:
        yield from _equal("prior_complete", before.prior_complete, record.prior_complete)
    if before.finish is not None and not isinstance(record, Fence):
        yield BrokenLaw("a FENCE, after FINISH", what)
    if isinstance(record, Fence):
        yield from _fence_laws(before, record)
    elif position == FIRST_POSITION:
        yield BrokenLaw("a FENCE as the first record", what)
    if isinstance(record, Finish) and (record.visible or 0) > before.checkpoint_floor:
        yield BrokenLaw(f"visible of {before.checkpoint_floor} or less", str(record.visible))
    if isinstance(record, Complete):
        yield from _complete_laws(before, record)
    if isinstance(record, Fence | Complete):
        yield from _kept_laws(before, record)


def next_prior_complete(position: int, record: Record) -> int:
    """Returns the back link of the record after `record`. Discarded checkpoints stay out of reach."""
    if isinstance(record, Complete):
        return position
    return NO_RECORD if isinstance(record, Finish) and record.discarded else record.prior_complete


def _fence_laws(before: Before, record: Fence) -> Iterator[BrokenLaw]:
    yield from _equal("job", before.job, record.spec.job)
    if before.fence_known:
        fence = before.fence
        if fence is None:
            prior_run = NO_RECORD
        else:
            prior_run = fence.prior_run if fence.spec.run_id == record.spec.run_id else fence.token
        yield from _equal("prior_run", prior_run, record.prior_run)
    if record.checkpoint_floor < before.checkpoint_floor:
        yield BrokenLaw(f"checkpoint_floor of {before.checkpoint_floor} or more", str(record.checkpoint_floor))
    if record.restored_position == NO_RECORD:
        yield from _equal("restored_checkpoint", 0, record.restored_checkpoint)
    elif not FIRST_POSITION <= record.restored_position < before.position:
        yield BrokenLaw("an earlier record as restored_position", str(record.restored_position))
    else:
        decided = before.checkpoint_at(record.restored_position)
        if decided is not None:
            yield from _equal("restored_checkpoint", decided, record.restored_checkpoint)


def _complete_laws(before: Before, record: Complete) -> Iterator[BrokenLaw]:
    if record.checkpoint <= before.checkpoint_floor:
        yield BrokenLaw(f"a checkpoint id above {before.checkpoint_floor}", str(record.checkpoint))
    if before.fence is not None and before.fence.token == record.token:
        yield from _equal("lineage", before.fence.lineage, record.lineage)
    if Paths(before.job).checkpoint_of(record.manifest) != (record.checkpoint, record.token):
        yield BrokenLaw(f"a manifest key of checkpoint {record.checkpoint}, generation {record.token}", record.manifest)


def _kept_laws(before: Before, record: Fence | Complete) -> Iterator[BrokenLaw]:
    """Checks that a list only loses positions: a dropped checkpoint never comes back."""
    for each in record.kept:
        if not FIRST_POSITION <= each < before.position or before.checkpoint_at(each) == 0:
            yield BrokenLaw("positions of decisions as kept", str(each))
    gained = frozenset(record.kept) - before.kept if before.kept is not None else ()
    if gained:
        yield BrokenLaw("as kept what was kept before", f"also {min(gained)}")
    restored = NO_RECORD if isinstance(record, Complete) else record.restored_position
    if record.lists_kept and restored not in (NO_RECORD, *record.kept):
        yield BrokenLaw(f"as kept also {restored}, which it restores", str(record.kept))


def _equal(name: str, expected: object, found: object, why: str = "") -> Iterator[BrokenLaw]:
    if expected != found:
        yield BrokenLaw(f"{name} = {expected}{why}", f"{name} = {found}")
