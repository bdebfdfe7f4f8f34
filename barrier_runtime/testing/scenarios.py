"""Scenarios of a certification. Each can run alone by name.

`crash <plan> i j`: the first generation dies at call i, the second at its call j, the third ends the plan. `stall
<plan> i j`: the first generation stalls at call i, its successor does j steps, the first, now a zombie, does all it
can, and the successor ends the plan. `inside <plan> k`: the first generation dies inside a call, before the k-th line
of the sink's own files; `inside recovery k`: the second generation does. `write <plan> k` and `write recovery k`: the
same at the k-th step of file writes; `full …`: that step raises an error, as on a full disk, and nothing dies. `walk
s`: random crashes and stalls, with rescaling.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.testing.crash_points import Point
from barrier_runtime.testing.environment import Environment, Form, Round
from barrier_runtime.testing.judge import Broken, Written
from barrier_runtime.testing.sink_process import SINK, Process


def _call(number: int) -> Point:
    return Point("call", number)


def _pre_committed(environment: Environment) -> Process:
    process = environment.start()
    environment.run(environment.open(process))
    environment.run(written_and_sealed(environment, process))
    return process


def written_and_sealed(environment: Environment, process: Process) -> Iterator[bool]:
    newest = environment.newest
    yield from environment.write(process, "commit", newest.position if newest is not None else 0)
    _, captures = environment.barrier(process)
    environment.sealed(process, captures)
    yield True


def _leave_pending(environment: Environment, rounds: int, parallelism: int = 0) -> None:
    process = environment.start(parallelism)
    environment.run(environment.live(process, rounds, flush=False))
    environment.run(written_and_sealed(environment, process))
    environment.crash(process)


def _closed_by(process: Process) -> list[tuple[Written, bytes]]:
    return [(each, each.committable) for each in process.written if each.committable is not None]


def _repeated_commits(environment: Environment) -> None:
    """Repeats commits at once, later, elsewhere, and older after newer (T6, T11 of docs/behaviours.md)."""
    first = environment.start()
    environment.run(environment.live(first, flush=False))
    done = _closed_by(first)
    for _ in range(2):
        for written, committable in done:
            for _ in range(2):
                sink = first.hands[written.subtask].sink
                environment.must_not_raise("a repeated commit", sink.commit, committable)
        _commit_globally_again(environment, first, done)
    environment.crash(first)
    second = environment.start()
    environment.run(environment.live(second))
    for written, committable in reversed(done):
        sink = second.hands[written.subtask].sink
        environment.must_not_raise("a repeated commit by a later generation", sink.commit, committable)
    _commit_globally_again(environment, second, done)
    environment.end(second)
    environment.recover_once_more()


def _commit_globally_again(environment: Environment, process: Process, done: Sequence[tuple[Written, bytes]]) -> None:
    if not environment.target.promise.global_committer:
        return
    ordered = sorted(done, key=lambda each: (each[0].checkpoint, each[0].subtask))
    checkpoints = sorted({written.checkpoint for written, _ in ordered})
    for through in (checkpoints[-1], checkpoints[-1], checkpoints[0], checkpoints[-1]):
        committables = [committable for written, committable in ordered if written.checkpoint <= through]
        sink = process.hands[0].sink
        environment.must_not_raise("a repeated global commit", sink.commit_globally, through, committables)


def _abort(environment: Environment, *, by_another: bool) -> None:
    """Aborts twice; then the rows must be gone, and a commit must raise (T6 of docs/behaviours.md)."""
    first = _pre_committed(environment)
    aborted = _closed_by(first)
    by = first
    if by_another:
        environment.crash(first)
        by = environment.start()
        environment.run(environment.open(by))
    for _ in range(2):
        for written, committable in aborted:
            sink = by.hands[written.subtask].sink
            environment.must_not_raise("abort", sink.abort, committable)
    promise = environment.target.promise
    if promise.exactly_once and not promise.shows_early:
        for written, committable in aborted:
            _must_refuse(by, written, committable, promise.global_committer)
        environment.look()
    environment.crash(by)
    environment.run_to_crash()
    environment.recover_once_more()


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


def _abort_after_commit(environment: Environment) -> None:
    first = environment.start()
    environment.run(environment.live(first))
    for written, committable in _closed_by(first):
        try:
            first.hands[written.subtask].sink.abort(committable)
        except Exception as error:
            environment.steps.append(f"abort of what is committed is refused: {type(error).__name__}: {error}")
        environment.look()
    environment.end(first)
    environment.recover_once_more()


def _fresh_start(environment: Environment, *, token: int | None) -> None:
    """Starts with ids from 1 on a target that has seen checkpoint 100 (T14 of docs/behaviours.md)."""
    environment.floor = 99
    first = environment.start()
    environment.run(environment.live(first, 2))
    environment.crash(first)
    environment.begin_lineage(token=token)
    assert environment.run_to_crash(at=_call(12)), "a generation has more crash points than that"
    environment.run_to_crash()
    environment.recover_once_more(clean_up=False)


def _older_checkpoint(environment: Environment) -> None:
    """Starts from an older checkpoint, whose rows are already visible, as another lineage."""
    first = environment.start()
    environment.run(environment.live(first, 2))
    kept = environment.decisions[0]
    environment.crash(first)
    environment.begin_lineage(keep=kept)
    environment.run_to_crash()
    environment.recover_once_more()


def _rescale(environment: Environment, *parallelisms: int) -> None:
    """Rescales after generations that leave decided and undecided transactions (T8 of docs/behaviours.md)."""
    for parallelism in parallelisms:
        if environment.newest is not None and environment.newest.rounds >= len(environment.plan) - 1:
            break
        _leave_pending(environment, 1, parallelism)
    environment.run_to_crash(parallelisms[-1])
    environment.recover_once_more(parallelisms[0])


def _crash_in_recovery(environment: Environment) -> None:
    _leave_pending(environment, 4)
    if all(environment.run_to_crash(at=_call(number)) for number in range(1, 12)):
        environment.run_to_crash()
    environment.recover_once_more()


def _commit_beside_pre_commit(environment: Environment) -> None:
    process = environment.start()
    position = 0
    environment.run(environment.open(process))
    for index, kind in enumerate(environment.plan):
        environment.run(environment.write(process, kind, position))
        position += environment.target.rows * environment.target.parallelism
        checkpoint, captures = environment.barrier(process)
        with ThreadPoolExecutor(2) as pool:
            sealing = pool.submit(environment.sealed, process, captures)
            committing = pool.submit(process.work_of_one_each)
        for finish in committing.result():
            finish()
        environment.must_not_raise("pre_commit beside a commit", sealing.result)
        environment.decide(process, checkpoint, sealing.result(), position, index + 1)
        for hand in process.hands:
            hand.chain.completed(checkpoint)  # the commit waits for the next round's pre-commit
    environment.run(environment.commit(process))
    environment.end(process)
    environment.recover_once_more()


def _whole(environment: Environment, form: Form) -> None:
    environment.form = form
    _straight(environment)


def _closed_at_work(environment: Environment) -> None:
    """Closes sinks that hold decided, undecided and unfinished transactions: `close` decides nothing."""
    process = environment.start()
    environment.run(environment.live(process, 1, flush=False))
    environment.run(written_and_sealed(environment, process))
    environment.run(environment.write(process, "commit", 2 * environment.target.rows * process.parallelism))
    environment.leave(process)
    environment.run_to_crash()
    environment.recover_once_more()


def _shared(environment: Environment, *, job: str = "", sink: str = SINK) -> None:
    """Two sinks on a target, of a job or of two. Both recover, and neither may touch rows that the other staged."""
    other = environment.beside(environment.job + job, sink)
    _leave_pending(environment, 1)
    environment.steps.append(f"the next generations are of job {other.job}, sink {sink}")
    try:
        _leave_pending(other, 1)
    except Broken as broken:
        if isinstance(broken.__cause__, InvalidJob):
            return  # the target takes one sink only
        raise
    other.run_to_crash()
    environment.steps.append(f"the next generations are of job {environment.job}, sink {SINK}")
    environment.run_to_crash()
    environment.recover_once_more(clean_up=False)
    environment.steps.append(f"the next generations are of job {other.job}, sink {sink}")
    other.recover_once_more()
    environment.look()


SINGLE_SCENARIOS: dict[str, tuple[tuple[Round, ...], Callable[[Environment], None]]] = {
    "batches": (("commit", "late", "half", "commit"), lambda environment: _whole(environment, "batches")),
    "lists": (("commit", "late", "half", "commit"), lambda environment: _whole(environment, "lists")),
    "closed at work": (("late", "late", "commit"), _closed_at_work),
    "two sinks": (("late", "late", "commit"), lambda environment: _shared(environment, sink=f"{SINK}-2")),
    "two jobs": (("late", "late", "commit"), lambda environment: _shared(environment, job="-2")),
    "repeated commits": (("late", "late"), _repeated_commits),
    "abort": (("commit", "commit"), lambda environment: _abort(environment, by_another=False)),
    "abort by another": (("commit", "commit"), lambda environment: _abort(environment, by_another=True)),
    "abort after commit": (("commit", "commit"), _abort_after_commit),
    "fresh start": (("commit", "late", "commit", "commit"), lambda environment: _fresh_start(environment, token=None)),
    "fresh start, new storage": (
        ("commit", "late", "commit", "commit"),
        lambda environment: _fresh_start(environment, token=0),
    ),
    "older checkpoint": (("late", "commit", "commit"), _older_checkpoint),
    "many pending": (("late",) * 5, _crash_in_recovery),
    "commit beside pre-commit": (("late",) * 6, _commit_beside_pre_commit),
    "rescale 2 1 3": (("late",) * 4, lambda environment: _rescale(environment, 2, 1, 3)),
    "rescale 3 1": (("late",) * 3, lambda environment: _rescale(environment, 3, 1)),
    "rescale 1 2": (("late",) * 3, lambda environment: _rescale(environment, 1, 2)),
}


PLANS: dict[str, tuple[Round, ...]] = {
    "plain": ("commit", "commit"),
    "late": ("late", "commit"),
    "expire": ("expire", "commit"),
    "empty": ("half", "empty", "commit"),
}
MOST_ROUNDS = 8
_SECOND_CRASHES = 14
_SUCCESSOR_STEPS = 16


@dataclass(frozen=True)
class Scenario:
    name: str
    plan: tuple[Round, ...]
    play: Callable[[Environment], None]
    seed: int = 0


def single_scenario(name: str) -> Scenario:
    plan, play = SINGLE_SCENARIOS[name]
    return Scenario(name, plan, play)


def single_scenarios() -> list[Scenario]:
    return [single_scenario(name) for name in SINGLE_SCENARIOS]


def straight(plan: str) -> Scenario:
    return Scenario(f"straight {plan}", PLANS[plan], _straight)


def crashes(plan: str, crash_points: int) -> Iterator[Scenario]:
    for first in range(crash_points):
        yield crash(plan, first, None)
    for first in range(crash_points):
        for second in range(_SECOND_CRASHES):
            yield crash(plan, first, second)


def stalls(plan: str, crash_points: int) -> Iterator[Scenario]:
    for first in range(crash_points):
        for steps in range(_SUCCESSOR_STEPS):
            yield stall(plan, first, steps)


def crash(plan: str, first: int, second: int | None) -> Scenario:
    numbers = (first,) if second is None else (first, second)

    def play(environment: Environment) -> None:
        if all(environment.run_to_crash(at=_call(number)) for number in numbers):
            environment.run_to_crash()

    return Scenario(f"crash {plan} {first}" + ("" if second is None else f" {second}"), PLANS[plan], play)


def stall(plan: str, at: int, steps: int) -> Scenario:
    return Scenario(f"stall {plan} {at} {steps}", PLANS[plan], lambda environment: _stall(environment, at, steps))


INSIDE = {"inside": "line", "write": "write", "full": "failing write"}  # kind of point by a scenario's first word


def inside_call(word: str, plan: str, number: int) -> Scenario:
    """`plan`: of `PLANS`; "recovery": the second generation dies."""

    def play(environment: Environment) -> None:
        recovers = plan == "recovery"
        if recovers:
            _leave_pending(environment, 2)
        if environment.run_to_crash(at=Point(INSIDE[word], number)) or recovers or word == "full":
            environment.run_to_crash()
            environment.recover_once_more()

    return Scenario(f"{word} {plan} {number}", PLANS.get(plan, ("late", "late", "commit")), play)


def walk(seed: int) -> Scenario:
    random_plan = random.Random(seed)
    kinds: tuple[Round, ...] = ("commit", "commit", "late", "late", "expire", "half", "empty")
    plan = (*(random_plan.choice(kinds) for _ in range(random_plan.randint(2, 5))), "commit")
    return Scenario(f"walk {seed}", plan, _walk, seed)


def by_name(name: str) -> Scenario:
    if name in SINGLE_SCENARIOS:
        return single_scenario(name)
    match name.split():
        case ["walk", seed]:
            return walk(int(seed))
        case ["straight", plan] if plan in PLANS:
            return straight(plan)
        case ["crash", plan, first] if plan in PLANS:
            return crash(plan, int(first), None)
        case ["crash", plan, first, second] if plan in PLANS:
            return crash(plan, int(first), int(second))
        case ["stall", plan, at, steps] if plan in PLANS:
            return stall(plan, int(at), int(steps))
        case [word, plan, number] if word in INSIDE and plan in (*PLANS, "recovery"):
            return inside_call(word, plan, int(number))
    raise ValueError(f"there is no scenario {name!r}; take the name from a failure's message")


def _straight(environment: Environment) -> None:
    process = environment.start()
    environment.run(environment.live(process))
    environment.end(process)
    environment.recover_once_more()


def _stall(environment: Environment, at: int, steps: int) -> None:
    first, overtaken_by = _stalled(environment, at, steps)
    if overtaken_by is None:
        environment.end(first)
        return
    second, life = overtaken_by
    environment.steps.append(f"generation {second.token} goes on alone")
    environment.look()
    environment.run(life)
    environment.end(second)
    environment.crash(first)
    environment.recover_once_more(0)


def _stalled(
    environment: Environment, at: int, steps: int, parallelism: int = 0, successor_parallelism: int = 0
) -> tuple[Process, tuple[Process, Iterator[bool]] | None]:
    """After `steps` steps of its successor the stalled process continues as a zombie.

    Returns the process and its successor; None: the process had fewer crash points than `at`.
    """
    successor: list[tuple[Process, Iterator[bool]]] = []

    def held_up() -> None:
        first.is_zombie = True
        second = environment.start(successor_parallelism)
        environment.steps.append(f"generation {first.token} is held up, generation {second.token} takes over")
        successor.append((second, environment.live(second)))
        environment.run(successor[0][1], steps)
        environment.steps.append(f"generation {first.token} goes on as a zombie")

    first = environment.start(parallelism, _call(at), held_up)
    environment.run_as_zombie(environment.live(first))
    return first, successor[0] if successor else None


def _walk(environment: Environment) -> None:
    choose = environment.random
    for _ in range(6):
        parallelism = choose.randint(1, 3)
        if choose.random() < 0.35:
            if environment.newest is not None and environment.newest.rounds == len(environment.plan):
                break
            _stall_once(environment, choose.randint(0, 30), choose.randint(0, 20), parallelism, choose.randint(1, 3))
        elif not environment.run_to_crash(parallelism, _call(choose.randint(0, 40))):
            break
    else:
        environment.run_to_crash(choose.randint(1, 3))
    environment.recover_once_more(choose.randint(1, 3))


def _stall_once(environment: Environment, at: int, steps: int, parallelism: int, successor_parallelism: int) -> None:
    """As `_stall`, but the successor dies too, up to 10 steps later."""
    first, overtaken_by = _stalled(environment, at, steps, parallelism, successor_parallelism)
    if overtaken_by is not None:
        second, life = overtaken_by
        environment.look()
        environment.run(life, environment.random.randint(0, 10))
        environment.crash(second)
    environment.crash(first)
