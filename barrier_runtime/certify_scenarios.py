"""Which scenarios a certification consists of. Each has a name, by which it can be run alone, and is always the same.

`crash <plan> i j`: the first generation dies at moment i, the second at its moment j, the third ends the plan.
`stall <plan> i j`: the first generation is held up at moment i; its successor does j steps; then the first, a zombie
now, does all it still can; then the successor ends the plan. `inside <plan> k`: the first generation dies inside a
call, before the k-th line of the sink's own files; `inside recovery k`: the second one does. `walk s`: crashes and
stalls at random, with rescaling. The others are single stories.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from barrier_runtime.certify_judge import Broken, Written
from barrier_runtime.certify_process import Moments, Process
from barrier_runtime.certify_world import Round, World

PLANS: dict[str, tuple[Round, ...]] = {
    "plain": ("commit", "commit"),
    "late": ("late", "commit"),
    "expire": ("expire", "commit"),
    "empty": ("half", "empty", "commit"),
}
MOST_ROUNDS = 8
_SECOND_CRASHES = 14  # moments of the second generation, which are its recovery and a little more
_SUCCESSOR_STEPS = 16


@dataclass(frozen=True)
class Scenario:
    name: str
    plan: tuple[Round, ...]
    play: Callable[[World], None]
    seed: int = 0


def story(name: str) -> Scenario:
    """The single story of this name."""
    plan, play = _STORIES[name]
    return Scenario(name, plan, play)


def stories() -> list[Scenario]:
    return [story(name) for name in _STORIES]


def straight(plan: str) -> Scenario:
    return Scenario(f"straight {plan}", PLANS[plan], _straight)


def crashes(plan: str, moments: int) -> Iterator[Scenario]:
    for first in range(moments):
        yield crash(plan, first, None)
    for first in range(moments):
        for second in range(_SECOND_CRASHES):
            yield crash(plan, first, second)


def stalls(plan: str, moments: int) -> Iterator[Scenario]:
    for first in range(moments):
        for steps in range(_SUCCESSOR_STEPS):
            yield stall(plan, first, steps)


def crash(plan: str, first: int, second: int | None) -> Scenario:
    def play(world: World) -> None:
        for at in (first, second, None) if second is not None else (first, None):
            if not world.run_to_crash(0, at):
                return

    return Scenario(f"crash {plan} {first}" + ("" if second is None else f" {second}"), PLANS[plan], play)


def stall(plan: str, at: int, steps: int) -> Scenario:
    return Scenario(f"stall {plan} {at} {steps}", PLANS[plan], lambda world: _stall(world, at, steps))


def inside(plan: str, line: int) -> Scenario:
    def play(world: World) -> None:
        if world.run_to_crash(0, None, line):
            world.run_to_crash(0, None)
            world.recover_once_more()

    return Scenario(f"inside {plan} {line}", PLANS[plan], play)


def inside_recovery(line: int) -> Scenario:
    def play(world: World) -> None:
        first = world.start()
        world.run(world.live(first, 2, flush=False))
        world.run(_written_and_sealed(world, first))
        world.crash(first)
        world.run_to_crash(0, None, line)
        world.run_to_crash(0, None)
        world.recover_once_more()

    return Scenario(f"inside recovery {line}", ("late", "late", "commit"), play)


def walk(seed: int) -> Scenario:
    random_plan = random.Random(seed)
    kinds: tuple[Round, ...] = ("commit", "commit", "late", "late", "expire", "half", "empty")
    plan = (*(random_plan.choice(kinds) for _ in range(random_plan.randint(2, 5))), "commit")
    return Scenario(f"walk {seed}", plan, _walk, seed)


def by_name(name: str) -> Scenario:
    """Raises `ValueError` for a name of none."""
    if name in _STORIES:
        return story(name)
    kind, *rest = name.split() or [""]
    if kind == "walk" and len(rest) == 1:
        return walk(int(rest[0]))
    if kind == "inside" and len(rest) == 2 and rest[0] in (*PLANS, "recovery"):
        return inside_recovery(int(rest[1])) if rest[0] == "recovery" else inside(rest[0], int(rest[1]))
    if kind == "straight" and len(rest) == 1 and rest[0] in PLANS:
        return straight(rest[0])
    if kind in ("crash", "stall") and rest and rest[0] in PLANS:
        numbers = [int(each) for each in rest[1:]]
        if kind == "crash" and len(numbers) in (1, 2):
            return crash(rest[0], numbers[0], numbers[1] if len(numbers) == 2 else None)
        if kind == "stall" and len(numbers) == 2:
            return stall(rest[0], *numbers)
    raise ValueError(f"there is no scenario {name!r}; take the name from a failure's message")


# ---------------------------------------------------------------- enumerated


def _straight(world: World) -> None:
    process = world.start()
    world.run(world.live(process))
    world.end(process)
    world.recover_once_more()


def _stall(world: World, at: int, steps: int, parallelism: int = 0, successor_parallelism: int = 0) -> None:
    successor: list[tuple[Process, Iterator[bool]]] = []

    def held_up() -> None:
        first.is_zombie = True
        second = world.start(successor_parallelism)
        world.steps.append(f"generation {first.token} is held up, generation {second.token} takes over")
        life = world.live(second)
        successor.append((second, life))
        world.run(life, steps)
        world.steps.append(f"generation {first.token} goes on as a zombie")

    first = world.start(parallelism, Moments(at, held_up))
    world.run_as_zombie(world.live(first))
    if not successor:  # it had fewer moments
        world.end(first)
        return
    second, life = successor[0]
    world.steps.append(f"generation {second.token} goes on alone")
    world.look()
    world.run(life)
    world.end(second)
    world.crash(first)
    world.recover_once_more(successor_parallelism)


def _walk(world: World) -> None:
    choose = world.random
    for _ in range(6):
        parallelism = choose.randint(1, 3)
        if choose.random() < 0.35:
            if world.newest is not None and world.newest.rounds == len(world.plan):
                break
            _stall_once(world, choose.randint(0, 30), choose.randint(0, 20), parallelism, choose.randint(1, 3))
        elif not world.run_to_crash(parallelism, choose.randint(0, 40)):
            break
    else:
        world.run_to_crash(choose.randint(1, 3), None)
    world.recover_once_more(choose.randint(1, 3))


def _stall_once(world: World, at: int, steps: int, parallelism: int, successor_parallelism: int) -> None:
    """As `_stall`, but the successor dies too, after `steps` more."""
    successor: list[tuple[Process, Iterator[bool]]] = []

    def held_up() -> None:
        first.is_zombie = True
        second = world.start(successor_parallelism)
        world.steps.append(f"generation {first.token} is held up, generation {second.token} takes over")
        successor.append((second, world.live(second)))
        world.run(successor[0][1], steps)
        world.steps.append(f"generation {first.token} goes on as a zombie")

    first = world.start(parallelism, Moments(at, held_up))
    world.run_as_zombie(world.live(first))
    for second, life in successor:
        world.look()
        world.run(life, world.random.randint(0, 10))
        world.crash(second)
    world.crash(first)


# ---------------------------------------------------------------- single stories


def _pre_committed(world: World) -> Process:
    """A generation that opened, recovered, wrote a round and made it durable; nothing of that is decided."""
    process = world.start()
    world.run(world.open(process))
    world.run(_written_and_sealed(world, process))
    return process


def _written_and_sealed(world: World, process: Process) -> Iterator[bool]:
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
    assert world.run_to_crash(0, 12), "a generation has more moments than that"
    world.run_to_crash(0, None)
    world.recover_once_more(tidy=False)


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
        world.run(_written_and_sealed(world, process))
        world.crash(process)
    world.run_to_crash(parallelisms[-1], None)
    world.recover_once_more(parallelisms[0])


def _crash_in_recovery(world: World) -> None:
    first = world.start()
    world.run(world.live(first, 4, flush=False))
    world.run(_written_and_sealed(world, first))
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


_STORIES: dict[str, tuple[tuple[Round, ...], Callable[[World], None]]] = {
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
