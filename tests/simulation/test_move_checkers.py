"""Tests of the checkers of rescales, replaces and savepoints."""

import dataclasses

import msgspec
from histories import History, but_last, data, last
from judged import Case, Table, check, each_case, untold
from move_checkers import BANK_MOVE_CHECKERS, MOVE_CHECKERS, MovedFilesAreShown, OneOwner

from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, OperatorSnapshot

ALL = (*MOVE_CHECKERS, *BANK_MOVE_CHECKERS)


def of(parallelism: int, run: str = "run-1", program: str = "") -> dict[str, object]:
    options = CheckpointOptions(retained=1)
    return {"spec": JobSpec("bank", run, "test", parallelism, 16, (), options, program=program)}


def job() -> History:
    return History("two-sinks", more=ALL).fence(says=of(1))


def visible(history: History, checkpoint: int = 1, upto: int = 3) -> History:
    return history.checkpoint(checkpoint, upto).out(checkpoint).side(checkpoint)


def owned(*ranges: tuple[int, int]) -> History:
    """Reports a checkpoint with keyed state of these key groups."""
    history = job().checkpoint(1, 2)
    keyed = [KeyedSnapshot("lsm", 16, first, last, {}, (), 0, 0) for first, last in ranges]
    operators = tuple(OperatorSnapshot("count", n, len(ranges), {}, each) for n, each in enumerate(keyed))
    decision = history.facts.decisions[-1]
    judge = next(each for each in history.checkers if isinstance(each, OneOwner))
    manifest = msgspec.structs.replace(decision.manifest, operators=operators)
    judge.on_decision(dataclasses.replace(decision, manifest=manifest))
    return history


def moved(parallelism: int, *left: tuple[str, int, int, int]) -> History:
    """Restores a checkpoint with a row in an open file; the next checkpoint still has the rows `left` in open files."""
    open_row = ("a", 0, 3, 0)
    history = visible(job()).keeps(open_row).fence(1, says=of(parallelism, run="run-2")).checkpoint(2, 4)
    decision = history.facts.decisions[-1]
    for judge in history.checkers:
        if isinstance(judge, MovedFilesAreShown):
            judge.on_record(0, next(each for each in reversed(history.facts.records) if isinstance(each, Fence)))
            judge.on_decision(dataclasses.replace(decision, kept=frozenset(left)))
    return history.out(2).side(2)


def saved() -> History:
    return visible(job().upload("f")).checkpoint(2, 4, "f").out(2).side(2).savepoint(2)


def unending() -> History:
    return History("two-sinks", more=ALL, bounded=False).fence(says=of(1))


def drained(history: History, checkpoint: int = 1, upto: int = 4) -> History:
    return history.checkpoint(checkpoint, upto, drained="run-1").out(checkpoint).side(checkpoint)


MOVES: Table = {
    "NothingIsReadTwice": (
        Case(
            "the old slots had read more than they moved with",
            lambda: visible(job().reads(1, "a-0", 4).reads(1, "a-1", 3)).fence(1, says=of(2)),
            "generation 1 has read 4 rows of a-0, and moved with checkpoint 1, whose position is 3",
            once=True,
        ),
        Case(
            "an old slot reads on",
            lambda: visible(job()).fence(1, says=of(1, program="other")).reads(1, "a-1", 4),
            "generation 1 has read 4 rows of a-1",
            once=True,
        ),
        Case(
            "the new slots read on, and those that come after a failure, or a start of the program, read again",
            lambda: (
                visible(job().reads(1, "a-0", 3))
                .fence(1, says=of(2))
                .reads(3, "a-0", 5)
                .fence(1, says=of(2))
                .reads(4, "a-1", 5)
                .fence(1, says=of(1, run="run-2"))
            ),
        ),
    ),
    "OneOwner": (
        Case("two owners", lambda: owned((0, 8), (8, 15)), "key groups of count have none or several owners"),
        Case("no owner", lambda: owned((0, 6), (8, 15)), "key groups of count have none or several owners"),
        Case("one each", lambda: owned((0, 7), (8, 15))),
    ),
    "MovesWaitForCommits": (
        Case(
            "a sink has still to commit",
            lambda: job().checkpoint(1, 4).out(1).fence(1, says=of(2)),
            "the job moved with checkpoint 1, but sink side shows 16 of its rows not yet",
        ),
        Case(
            "all is committed; other generations do not wait",
            lambda: (
                visible(job())
                .fence(1, says=of(2))
                .checkpoint(2, 6)
                .fence(2, says=of(2))
                .fence(2, says=of(1, run="run-2"))
            ),
        ),
    ),
    "SavepointsShareNothing": (
        Case(
            "its files are gone",
            lambda: saved().lose_of_savepoint().end(expected_all=False),
            "the savepoint of checkpoint 2 has lost data/2-1-wish-2/1",
        ),
        Case("the job's files may go", lambda: saved().lose(data("f")).end(expected_all=False)),
    ),
    "DrainedReadsNoMore": (
        Case(
            "rows were read that the last checkpoint does not have",
            lambda: drained(unending().reads(1, "a-0", 5)),
            "5 rows of a-0 were read; the job was drained with checkpoint 1, whose position is 4",
            once=True,
        ),
        Case(
            "a slot that was started again reads on",
            lambda: drained(unending().reads(1, "a-0", 4)).fence(1, says=of(1)).reads(3, "a-0", 5),
            "5 rows of a-0 were read",
            once=True,
        ),
        Case(
            "a later checkpoint has read more",
            lambda: drained(drained(unending()), 2, 5),
            "those of checkpoint 1, when the job was drained, were",
            once=True,
        ),
        Case(
            "what was read before a failure, and what another run reads",
            lambda: (
                drained(unending().reads(1, "a-0", 6).fence(says=of(1)).reads(2, "a-0", 4))
                .reads(1, "a-0", 7)
                .fence(1, says=of(1, run="run-2"))
                .reads(4, "a-0", 6)
            ),
        ),
    ),
    "StopsAreKept": (
        Case(
            "a successor goes on without it",
            lambda: unending().stop().lead("leader-b"),
            "the job was to stop with savepoint last-1; log record 3 says no more of it",
            once=True,
        ),
        Case(
            "a checkpoint is decided without it",
            lambda: visible(unending().stop()),
            "the job was to stop with savepoint last-1; log record 3 says no more of it",
            once=True,
        ),
        Case("it could not be copied: another generation", lambda: visible(unending().stop().fence(says=of(1)))),
        Case("it could not be copied, and the job had been drained", lambda: drained(unending()).stop().finish()),
    ),
    "MovedFilesAreShown": (
        Case(
            "a row of a moved file is still in an open file",
            lambda: moved(2, ("a", 0, 3, 0)),
            "checkpoint 2, the first at another parallelism, has rows of open files that were moved",
            once=True,
        ),
        Case("newer rows wait in open files", lambda: moved(2, ("a", 0, 7, 0))),
        Case("the file grows on, at the same parallelism", lambda: moved(1, ("a", 0, 3, 0))),
    ),
    "DrainedIsOut": (
        Case(
            "a row is not there",
            lambda: unending().checkpoint(1, 4, drained="run-1").out(1).side(1, spoil=but_last(1)).finish(),
            "checkpoint 1, the last of a drained job, has rows that sink side shows not: 1, or not once: 0",
            once=True,
        ),
        Case(
            "a row is there twice",
            lambda: drained(unending()).side(1, spoil=last(1)).finish(),
            "or not once: 1",
            also=("NothingDoubled", "NothingReordered", "WholeState"),
        ),
        Case(
            "the last checkpoint was taken before the sources ended",
            lambda: visible(unending()).finish(),
            "checkpoint 1, the last of a drained job, was taken before its sources had ended",
            once=True,
        ),
        Case("nothing was decided", lambda: unending().finish(), "drained without any checkpoint", once=True),
        Case("all is out, in two checkpoints", lambda: drained(visible(unending()), 2, 5).finish()),
        Case("a job that is stopped is not drained", lambda: unending().checkpoint(1, 4).finish("cancelled")),
    ),
    "StoppedIsOut": (
        Case(
            "a row is not there",
            lambda: unending().checkpoint(1, 4).out(1).side(1, spoil=but_last(1)).finish("cancelled", visible=1),
            "names checkpoint 1 as visible, and sink side lacks 1 of its rows",
            once=True,
        ),
        Case(
            "the checkpoint was never decided",
            lambda: visible(unending()).finish("cancelled", visible=2),
            "names checkpoint 2 as visible, which was never decided",
            once=True,
        ),
        Case("all is out", lambda: visible(unending()).finish("cancelled", visible=1)),
        Case("nothing is promised", lambda: unending().checkpoint(1, 4).finish("cancelled")),
    ),
}


@each_case(MOVES)
def test_judges_of_changes_of_a_running_job(judge: str, case: Case) -> None:
    """A checker reports exactly the histories that break its rule."""
    check(judge, case)


def test_every_judge_is_shown_to_speak_and_to_be_silent() -> None:
    assert untold(MOVES, {each.__name__ for each in ALL}) == []
