"""Which scenarios a certification consists of. Each has a name, by which it can be run alone, and is always the same.

`crash <plan> i j`: the first generation dies at moment i, the second at its moment j, the third ends the plan.
`stall <plan> i j`: the first generation is held up at moment i; its successor does j steps; then the first, a zombie
now, does all it still can; then the successor ends the plan. `inside <plan> k`: the first generation dies inside a
call, before the k-th line of the sink's own files; `inside recovery k`: the second one does. `walk s`: crashes and
stalls at random, with rescaling. The others are single single scenarios.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from barrier_runtime.testing.crash_points import SINGLE_SCENARIOS, written_and_sealed
from barrier_runtime.testing.environment import Environment
from barrier_runtime.testing.sink_process import CrashPoints, Process
from barrier_runtime.testing.target import Round

PLANS: dict[str, tuple[Round, ...]] = {
    "plain": ("commit", "commit"),
    "late": ("late", "commit"),
    "expire": ("expire", "commit"),
    "empty": ("half", "empty", "commit"),
}
MOST_ROUNDS = 8
_SECOND_CRASHES = 14  # crash points of the second generation, which are its recovery and a little more
_SUCCESSOR_STEPS = 16


@dataclass(frozen=True)
class Scenario:
    name: str
    plan: tuple[Round, ...]
    play: Callable[[Environment], None]
    seed: int = 0


def single_scenario(name: str) -> Scenario:
    """The single single scenario of this name."""
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
    def play(environment: Environment) -> None:
        for at in (first, second, None) if second is not None else (first, None):
            if not environment.run_to_crash(0, at):
                return

    return Scenario(f"crash {plan} {first}" + ("" if second is None else f" {second}"), PLANS[plan], play)


def stall(plan: str, at: int, steps: int) -> Scenario:
    return Scenario(f"stall {plan} {at} {steps}", PLANS[plan], lambda environment: _stall(environment, at, steps))


def inside(plan: str, line: int) -> Scenario:
    def play(environment: Environment) -> None:
        if environment.run_to_crash(0, None, line):
            environment.run_to_crash(0, None)
            environment.recover_once_more()

    return Scenario(f"inside {plan} {line}", PLANS[plan], play)


def inside_write(plan: str, number: int) -> Scenario:
    """A process dies when it has opened a file, or has written half of what it was to write."""

    def play(environment: Environment) -> None:
        if environment.run_to_crash(0, None, writing=number):
            environment.run_to_crash(0, None)
            environment.recover_once_more()

    return Scenario(f"write {plan} {number}", PLANS[plan], play)


def inside_write_of_recovery(number: int) -> Scenario:
    def play(environment: Environment) -> None:
        _die_in_recovery(environment, writing=number)

    return Scenario(f"write recovery {number}", ("late", "late", "commit"), play)


def _die_in_recovery(environment: Environment, inside: int | None = None, writing: int | None = None) -> None:
    first = environment.start()
    environment.run(environment.live(first, 2, flush=False))
    environment.run(written_and_sealed(environment, first))
    environment.crash(first)
    environment.run_to_crash(0, None, inside, writing)
    environment.run_to_crash(0, None)
    environment.recover_once_more()


def inside_recovery(line: int) -> Scenario:
    def play(environment: Environment) -> None:
        _die_in_recovery(environment, inside=line)

    return Scenario(f"inside recovery {line}", ("late", "late", "commit"), play)


def walk(seed: int) -> Scenario:
    random_plan = random.Random(seed)
    kinds: tuple[Round, ...] = ("commit", "commit", "late", "late", "expire", "half", "empty")
    plan = (*(random_plan.choice(kinds) for _ in range(random_plan.randint(2, 5))), "commit")
    return Scenario(f"walk {seed}", plan, _walk, seed)


def by_name(name: str) -> Scenario:
    """Raises `ValueError` for a name of none."""
    if name in SINGLE_SCENARIOS:
        return single_scenario(name)
    kind, *rest = name.split() or [""]
    if kind == "walk" and len(rest) == 1:
        return walk(int(rest[0]))
    if kind == "inside" and len(rest) == 2 and rest[0] in (*PLANS, "recovery"):
        return inside_recovery(int(rest[1])) if rest[0] == "recovery" else inside(rest[0], int(rest[1]))
    if kind == "write" and len(rest) == 2 and rest[0] in (*PLANS, "recovery"):
        return inside_write_of_recovery(int(rest[1])) if rest[0] == "recovery" else inside_write(rest[0], int(rest[1]))
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


def _straight(environment: Environment) -> None:
    process = environment.start()
    environment.run(environment.live(process))
    environment.end(process)
    environment.recover_once_more()


def _stall(environment: Environment, at: int, steps: int) -> None:
    first, overtaken_by = _stalled(environment, at, steps)
    if overtaken_by is None:  # it had fewer crash points
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
    """A process that is held up at crash point `at` and goes on as a zombie, and its successor, which went `steps` far
    meanwhile; None: it had fewer crash points."""
    successor: list[tuple[Process, Iterator[bool]]] = []

    def held_up() -> None:
        first.is_zombie = True
        second = environment.start(successor_parallelism)
        environment.steps.append(f"generation {first.token} is held up, generation {second.token} takes over")
        successor.append((second, environment.live(second)))
        environment.run(successor[0][1], steps)
        environment.steps.append(f"generation {first.token} goes on as a zombie")

    first = environment.start(parallelism, CrashPoints(at, held_up))
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
        elif not environment.run_to_crash(parallelism, choose.randint(0, 40)):
            break
    else:
        environment.run_to_crash(choose.randint(1, 3), None)
    environment.recover_once_more(choose.randint(1, 3))


def _stall_once(environment: Environment, at: int, steps: int, parallelism: int, successor_parallelism: int) -> None:
    """As `_stall`, but the successor dies too, after `steps` more."""
    first, overtaken_by = _stalled(environment, at, steps, parallelism, successor_parallelism)
    if overtaken_by is not None:
        second, life = overtaken_by
        environment.look()
        environment.run(life, environment.random.randint(0, 10))
        environment.crash(second)
    environment.crash(first)
