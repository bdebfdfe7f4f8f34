"""The part of the simulation in every test run: some seeds, equal traces, a planted bug, smaller schedules.

`make sim SEEDS=n` runs many seeds, `make sim-canaries` every planted bug.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import commit_canaries  # noqa: F401 - planted bugs of their own
import move_canaries  # noqa: F401 - planted bugs of their own
import pytest
import restore_canaries  # noqa: F401 - planted bugs of their own
import text_canaries  # noqa: F401 - planted bugs of their own
from canaries import CANARIES
from open_checkpoints import STRIKES
from schedule import ACTIONS, AIMED, OF_QUEUES, OF_UPLOADS, draw, shrink
from simulate import judge, judge_seed
from world import _ACTS

SIMULATE = Path(__file__).parent / "simulate.py"
judged = functools.cache(judge_seed)


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SIMULATE), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=False,
    )


@pytest.mark.parametrize("first", [0, 10])
def test_nothing_is_lost_doubled_reordered_or_torn(first: int) -> None:
    """I4 I5 I6 F7 O11: seeds with every kind of fault."""
    for seed in range(first, first + 10):
        assert judged(seed).violations == (), f"make sim SEED={seed}"


def test_the_same_seed_gives_the_same_trace_whatever_hashes_and_processes() -> None:
    """One seed of each kind of job; this process has its own hash seed."""
    seeds = [1, 3, 5, 10, 11, 13, 14, 21, 28, 38, 45, 47, 48, 110]  # the fastest seed of each kind
    replayed = simulate("--seed", *map(str, seeds), hash_seed="1")
    assert replayed.returncode == 0, replayed.stdout
    assert re.findall(r"trace (\S+)", replayed.stdout) == [judged(seed).trace_hash for seed in seeds]


def test_every_kind_of_job_is_among_the_first_seeds() -> None:
    stories = {"bank", "events", "topic", "tokens", "queue", "upserts", "staged", "twins", "hanging", "sides", "rules"}
    stories |= {"lookups", "joins", "open", "stable", "latest"}
    assert {draw(seed).story for seed in range(120)} == stories


def test_seeds_differ() -> None:
    assert len({judged(seed).trace_hash for seed in (3, 4, 5)}) == 3


def test_a_failure_prints_the_seed_the_last_events_and_the_command_that_replays_it() -> None:
    found = simulate("--canary", "delete-of-shared-files")
    assert found.returncode == 1, "a planted bug makes the simulation fail"
    assert "NothingNeededIsDeleted" in found.stdout
    assert "the last events:" in found.stdout
    command = next(line for line in found.stdout.splitlines() if line.startswith("replay it with: make sim SEED="))
    seed = command.split("SEED=")[1].split()[0]
    replayed = simulate("--seed", seed, "--canary", "delete-of-shared-files")
    assert replayed.returncode == 1
    assert "NothingNeededIsDeleted" in replayed.stdout
    assert judged(int(seed)).violations == (), "without the bug nothing is wrong"


def test_a_failing_schedule_is_made_smaller_and_still_fails() -> None:
    with CANARIES["older-checkpoint-restored"].plant():
        failing = draw(20)  # seventeen actions, one needed; other seeds take longer
        assert len(failing.actions) > 10
        checker = judge(failing).violations[0][0]
        smaller = shrink(failing, lambda each: any(v[0] == checker for v in judge(each).violations))
        assert 0 < len(smaller.actions) <= len(failing.actions)
        assert any(v[0] == checker for v in judge(smaller).violations)
        for left_out in range(len(smaller.actions)):
            rest = judge(smaller.without([left_out])).violations
            assert not any(v[0] == checker for v in rest), "every action that is left is needed"


def test_every_canary_can_be_planted_and_taken_away_again() -> None:
    """Planting leaves no trace in the code; `make sim-canaries` shows that each bug is found."""
    before = judged(5).trace_hash
    for canary in CANARIES.values():
        with canary.plant():
            pass
    assert judge_seed(5).trace_hash == before


def test_every_kind_of_trouble_is_acted_out() -> None:
    assert {*ACTIONS, *AIMED, *OF_QUEUES, *OF_UPLOADS, *STRIKES} == set(_ACTS)
