"""Required content of a log record, given the records before. Pure.

`DecisionLog` refuses to write a record that breaks a law; `fsck` reports broken laws. The hash chain
is checked elsewhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from barrier_runtime.coordinator.log.records import FIRST_POSITION, NO_RECORD, Complete, Fence, Finish, Record, base_of
from barrier_runtime.state.store.paths import Paths


@dataclass(frozen=True)
class BrokenLaw:
    expected: str
    found: str


@dataclass(frozen=True)
class Before:
    """None: unknown."""

    job: str
    position: int
    token: int | None  # of the previous record
    prior_complete: int | None  # required back link of the record
    fence: Fence | None
    fence_known: bool  # no newer FENCE was missed
    finish: Finish | None  # the previous record, if a FINISH
    checkpoint_floor: int
    kept: frozenset[int] | None
    base: int | None
    checkpoint_at: Callable[[int], int | None]  # decided by an earlier record; 0: none


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
    if before.base is not None:
        yield from _base_laws(before.position, before.base, record)


def next_prior_complete(position: int, record: Record) -> int:
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
    for each in record.kept:
        if not FIRST_POSITION <= each < before.position or before.checkpoint_at(each) == 0:
            yield BrokenLaw("positions of decisions as kept", str(each))
    gained = frozenset(record.kept) - before.kept if before.kept is not None else ()
    if gained:
        yield BrokenLaw("as kept what was kept before", f"also {min(gained)}")
    restored = NO_RECORD if isinstance(record, Complete) else record.restored_position
    if record.lists_kept and restored not in (NO_RECORD, *record.kept):
        yield BrokenLaw(f"as kept also {restored}, which it restores", str(record.kept))


def _base_laws(position: int, before: int, record: Record) -> Iterator[BrokenLaw]:
    base = base_of(record)
    if not isinstance(record, Complete):
        yield from _equal("base", before, base, " (only COMPLETE raises the base)")
    elif not before <= base < max(position, before + 1):
        yield BrokenLaw(f"a base from {before} up to {position - 1}", str(base))


def _equal(name: str, expected: object, found: object, why: str = "") -> Iterator[BrokenLaw]:
    if expected != found:
        yield BrokenLaw(f"{name} = {expected}{why}", f"{name} = {found}")
