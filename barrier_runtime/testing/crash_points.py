"""The single stories of a certification, which no enumeration of crashes and stalls would tell: repeated commits,
aborts, another start of the job, rescaling, a commit beside a pre-commit."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from barrier_runtime.testing.environment import World
from barrier_runtime.testing.judge import Broken, Written
from barrier_runtime.testing.sink_process import Process
from barrier_runtime.testing.target import Round


def _pre_committed(world: World) -> Process:
    """A generation that opened, recovered, wrote a round and made it durable; nothing of that is decided."""
    process = world.start()
    world.run(world.open(process))
    world.run(written_and_sealed(world, process))
    return process


def written_and_sealed(world: World, process: Process) -> Iterator[bool]:
    newest = world.newest
    yield from world.write(process, "commit", newest.position if newest is not None else 0)
    _, captures = world.barrier(process)
    world.sealed(process, captures)
    yield True


def _closed_by(process: Process) -> list[tuple[Written, bytes]]:
    return [(each, each.committable) for each in process.written if each.committable is not None]


def _repeated_commits(world: World) -> None:
    """T6, T11: at once, later, by another generation, and older ones after newer ones."""
    first = world.start()
    world.run(world.live(first, flush=False))
    done = _closed_by(first)
    for _ in range(2):
        for written, committable in done:
            for _ in range(2):
                sink = first.hands[written.subtask].sink
                world.must_not_raise("a repeated commit", sink.commit, committable)
        _commit_globally_again(world, first, done)
    world.crash(first)
    second = world.start()
    world.run(world.live(second))
    for written, committable in reversed(done):
        sink = second.hands[written.subtask].sink
        world.must_not_raise("a repeated commit by a later generation", sink.commit, committable)
    _commit_globally_again(world, second, done)
    world.end(second)
    world.recover_once_more()


def _commit_globally_again(world: World, process: Process, done: Sequence[tuple[Written, bytes]]) -> None:
    if not world.target.promise.global_committer:
        return
    ordered = sorted(done, key=lambda each: (each[0].checkpoint, each[0].subtask))
    checkpoints = sorted({written.checkpoint for written, _ in ordered})
    for through in (checkpoints[-1], checkpoints[-1], checkpoints[0], checkpoints[-1]):
        committables = [committable for written, committable in ordered if written.checkpoint <= through]
        sink = process.hands[0].sink
        world.must_not_raise("a repeated global commit", sink.commit_globally, through, committables)


def _abort(world: World, *, by_another: bool) -> None:
    """T6: what was aborted is gone, twice is as good as once, and committing it is an error."""
    first = _pre_committed(world)
    aborted = _closed_by(first)
    by = first
    if by_another:
        world.crash(first)
        by = world.start()
        world.run(world.open(by))
    for _ in range(2):
        for written, committable in aborted:
            sink = by.hands[written.subtask].sink
            world.must_not_raise("abort", sink.abort, committable)
    promise = world.target.promise
    if promise.exactly_once and not promise.shows_early:
        for written, committable in aborted:
            _must_refuse(by, written, committable, promise.global_committer)
        world.look()
    world.crash(by)
    world.run_to_crash(0, None)
    world.recover_once_more()


def _must_refuse(process: Process, written: Written, committable: bytes, globally: bool) -> None:
    try:
        process.hands[written.subtask].sink.commit(committable)
        if globally:
            process.hands[0].sink.commit_globally(written.checkpoint, [committable])
    except Exception:
        return
    raise Broken(
        "abort ignored", f"{written}: commit after abort raised no error: nobody would miss its rows", written.ids
    )


def _abort_after_commit(world: World) -> None:
    """What readers have seen is not taken back."""
    first = world.start()
    world.run(world.live(first))
    for written, committable in _closed_by(first):
        try:
            first.hands[written.subtask].sink.abort(committable)
        except Exception as error:
            world.steps.append(f"abort of what is committed is refused: {type(error).__name__}: {error}")
        world.look()
    world.end(first)
    world.recover_once_more()


def _fresh_start(world: World, *, token: int | None) -> None:
    """T14: ids from 1 again, on a target that has seen checkpoint 100."""
    world.floor = 99
    first = world.start()
    world.run(world.live(first, 2))
    world.crash(first)
    world.begin_lineage(token=token)
    assert world.run_to_crash(0, 12), "a generation has more crash_points than that"
    world.run_to_crash(0, None)
    world.recover_once_more(clean_up=False)


def _older_checkpoint(world: World) -> None:
    """A start from an older checkpoint is another lineage; what that one lists is visible already."""
    first = world.start()
    world.run(world.live(first, 2))
    kept = world.decisions[0]
    world.crash(first)
    world.begin_lineage(keep=kept)
    world.run_to_crash(0, None)
    world.recover_once_more()


def _rescale(world: World, *parallelisms: int) -> None:
    """T8: each generation has decided what it has not committed, and pre-committed what is not decided."""
    for parallelism in parallelisms:
        process = world.start(parallelism)
        if world.newest is not None and world.newest.rounds >= len(world.plan) - 1:
            break
        world.run(world.live(process, 1, flush=False))
        world.run(written_and_sealed(world, process))
        world.crash(process)
    world.run_to_crash(parallelisms[-1], None)
    world.recover_once_more(parallelisms[0])


def _crash_in_recovery(world: World) -> None:
    first = world.start()
    world.run(world.live(first, 4, flush=False))
    world.run(written_and_sealed(world, first))
    world.crash(first)
    for at in range(1, 12):
        if not world.run_to_crash(0, at):
            break
    else:
        world.run_to_crash(0, None)
    world.recover_once_more()


def _commit_beside_pre_commit(world: World) -> None:
    """As in a slot: a commit of the past on one thread while another makes the present durable."""
    process = world.start()
    position = 0
    world.run(world.open(process))
    for index, kind in enumerate(world.plan):
        world.run(world.write(process, kind, position))
        position += world.target.rows * world.target.parallelism
        checkpoint, captures = world.barrier(process)
        with ThreadPoolExecutor(2) as pool:
            sealing = pool.submit(world.sealed, process, captures)
            committing = pool.submit(process.work_of_one_each)
        for finish in committing.result():
            finish()
        world.must_not_raise("pre_commit beside a commit", sealing.result)
        world.decide(process, checkpoint, sealing.result(), position, index + 1)
        for hand in process.hands:
            hand.operator.on_complete(checkpoint)  # the commit waits for the next round's pre-commit
    world.run(world.commit(process))
    world.end(process)
    world.recover_once_more()


SINGLE_SCENARIOS: dict[str, tuple[tuple[Round, ...], Callable[[World], None]]] = {
    "repeated commits": (("late", "late"), _repeated_commits),
    "abort": (("commit", "commit"), lambda world: _abort(world, by_another=False)),
    "abort by another": (("commit", "commit"), lambda world: _abort(world, by_another=True)),
    "abort after commit": (("commit", "commit"), _abort_after_commit),
    "fresh start": (("commit", "late", "commit", "commit"), lambda world: _fresh_start(world, token=None)),
    "fresh start, new storage": (("commit", "late", "commit", "commit"), lambda world: _fresh_start(world, token=0)),
    "older checkpoint": (("late", "commit", "commit"), _older_checkpoint),
    "many pending": (("late",) * 5, _crash_in_recovery),
    "commit beside pre-commit": (("late",) * 6, _commit_beside_pre_commit),
    "rescale 2 1 3": (("late",) * 4, lambda world: _rescale(world, 2, 1, 3)),
    "rescale 3 1": (("late",) * 3, lambda world: _rescale(world, 3, 1)),
    "rescale 1 2": (("late",) * 3, lambda world: _rescale(world, 1, 2)),
}
