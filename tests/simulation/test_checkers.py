"""Tests of the simulation's checkers: a table of histories and verdicts, by checker.

Every history is reported to all checkers (`histories`, `judged`).
"""

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from checkers import CHECKERS, TARGET_CHECKERS, OnlyReadIsVisible
from hanging import Hang, HangingOpens
from histories import (
    COORDINATOR,
    PATHS,
    SLOT,
    History,
    Rows,
    account_raised,
    but_last,
    data,
    file_committable,
    final_name,
    job,
    last,
    of_split,
    pair,
    pair_numbered,
    row_raised,
    two_sinks,
)
from judged import Case, Table, Told, check, each_case, untold
from schedule import draw
from upsert_checkers import LastValues, StableRows
from workload import Row
from world import World

from barrier_runtime.coordinator.status.history import History as StoredHistory
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.status.status import CheckpointStatus
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.versioned import sha256_hex
from barrier_runtime.testing.simulation.loop import SimProcess, Simulation

MANIFEST = PATHS.manifest(1, 1)
PROBE = f"{PATHS.probe_prefix}/x"
TRANSACTION = b'{"transaction":"1-0-1"}'
INSIDE = FileRef("CURRENT", 3, sha256_hex(b"new"), inline=b"new")
WHOLE = FileRef("file.sst", 10, sha256_hex(b"0123456789"), data("file"))
PART = FileRef("part.sst", 4, sha256_hex(b"3456"), data("file"), 3)
PLACES = set(itertools.product("ab", (0, 1)))
STAGED = tuple(PATHS.staged_rows("out", 1, 0, number, f"id{number}") for number in (1, 2, 3))
OLDER = ("a", 0, 3, 1)  # older than another leg of its account, which is in split 1
REASON = "it refers to 1 file already deleted, e.g. x"
ABORTED = CheckpointStatus(checkpoint=1, token=1, outcome="aborted", reason=REASON, triggered_ms=0, duration_ms=1)
REFUSED = encode_history(StoredHistory(job="bank", run_id="run", history=(ABORTED,)))


# ---------------------------------------------------------------- histories with several steps


def listing(*positions: int) -> dict[str, object]:
    """Returns the fields of a record that lists the kept positions."""
    return {"version": 3, "kept": positions}


def listed(*checkpoints: int) -> History:
    """Returns a history of decisions that each drop the decision before."""
    history = job()
    for checkpoint in checkpoints:
        history.checkpoint(checkpoint, checkpoint, says=listing())
    return history


def bytes_again() -> History:
    """Writes every kind of record, the first record's bytes again, and replaces and deletes another object."""
    history = History().fence().checkpoint(1, 2).lead().fence().finish("cancelled").put_again(1)
    return history.put(PATHS.lease, b"{}").put(PATHS.lease, b"{}").delete(PATHS.lease)


def gap_filled_with(position: int) -> History:
    """Deletes log record 3 below the base, then writes the bytes of the record at `position` there."""
    history = listed(1, 2).checkpoint(3, 3, says={"version": 5, "kept": (), "base": 4})
    data = history.store.get(PATHS.log_record(position))
    return history.delete(PATHS.log_record(3)).put_in_a_gap(3, data)


def undecided(outcome: PutOutcome) -> History:
    """Sends all requests that are permitted while record 2 is undecided, and after its outcome is known."""
    history = History().answer(2, PutOutcome.UNKNOWN)
    history.request("put_if_absent", PATHS.log_record(2)).request("get", PATHS.log_record(3))
    history.request("put", PATHS.manifest(2, 1)).request("put_if_absent", PATHS.manifest(3, 1)).request("delete", PROBE)
    history.request("put_if_absent", PATHS.log_record(3), "coordinator-2").request("delete", MANIFEST, "coordinator-2")
    history.answer(2, outcome)
    return history.request("put_if_absent", PATHS.log_record(3)).request("delete", MANIFEST)


def nothing_needed() -> History:
    """Deletes checkpoints that are not retained, orphans of fenced generations, and objects outside of checkpoints."""
    history = job().upload("orphan").checkpoint(1, 1, "own", "shared").checkpoint(2, 2, "shared")
    history.delete(MANIFEST, data("own")).fence(restored=2).delete(data("orphan")).checkpoint(3, 3)
    return history.delete(PATHS.manifest(2, 1), data("shared")).delete(PROBE, actor=SLOT)


def decided_is_shown() -> History:
    """Shows rows after the next decision, by another generation, and twice."""
    history = two_sinks().decide(1, committables=[file_committable(1), TRANSACTION])
    history.decide(2, committables=[file_committable(2)]).fence()
    return history.publish(*2 * (final_name(1), final_name(2))).commit(TRANSACTION)


def packed() -> History:
    """Decides a checkpoint with the held back files of sixty checkpoints: such a set is packed."""
    history = job().decide(60, committables=[file_committable(each) for each in range(1, 61)])
    sets = [each.values.get(PENDING_VALUE, b"") for each in history.facts.decisions[-1].manifest.operators]
    assert any(b'"packed"' in each for each in sets)
    return history


def staged() -> History:
    committable = msgspec.json.encode({"objects": [{"key": key} for key in STAGED]})
    history = job()
    for key in STAGED:
        history.put(key, b"rows", SLOT)
    return history.decide(1, committables=[committable])


def shown(*, spoil: Any = list, upto: int = 6) -> History:
    """Shows one checkpoint in two sinks: unchanged in `out`, spoiled in `side`."""
    return two_sinks().checkpoint(1, upto).out(1).side(1, spoil=spoil)


def but_the_older(rows: Rows) -> Rows:
    return [row for row in rows if identity(row) != OLDER]


def identity(row: Row) -> tuple[str, int, int, int]:
    return row.source, row.split, row.seq, row.leg


def place(row: Row) -> tuple[str, int]:
    return row.source, row.split


def doubled_amounts(rows: Rows) -> Rows:
    return [msgspec.structs.replace(row, delta=2 * row.delta, balance=2 * row.balance) for row in rows]


def without_balances_but_the_first_account(rows: Rows) -> Rows:
    return account_raised([msgspec.structs.replace(row, balance=0) for row in rows], n=1)


# ---------------------------------------------------------------- the table

LOG: Table = {
    "ContiguousLog": (
        Case("a replaced record", lambda: job().fence(at=1, says={"reason": "other"}), "replaced log record 1"),
        Case("a record beyond a gap", lambda: job().fence(at=3), "wrote log record 3, the head is 1"),
        Case("a deleted record", lambda: job().delete(PATHS.log_record(1)), "deleted log record"),
        Case(
            "another predecessor",
            lambda: job().fence(says={"parent_sha256": "0" * 64}),
            "does not follow the bytes of 1",
        ),
        Case("every kind of record", bytes_again),
        Case("another decision in a gap", partial(gap_filled_with, 2), "another record than the deleted"),
        Case("a stalled FENCE in a gap", partial(gap_filled_with, 1)),
        Case("a late put in a gap", partial(gap_filled_with, 3)),
    ),
    "WholeManifests": (
        Case("a manifest never written", lambda: job().decide(1, stored=False), "its manifest is gone"),
        Case(
            "another hash than the manifest's",
            lambda: job().decide(1, says={"sha256": "0" * 64}),
            "its manifest is other",
        ),
        Case(
            "one of two files is gone",
            lambda: job().upload("first", "second").lose(data("second")).decide(1, files=["first", "second"]),
            "decided without its file bank/data/1/slot/second",
        ),
        Case(
            "a file with other bytes",
            lambda: job().upload("file", holds=b"01234").decide(1, files=[WHOLE]),
            "file.sst in bank/data/1/slot/file has other bytes than it says",
        ),
        Case(
            "other bytes inside of the manifest",
            lambda: job().decide(1, files=[msgspec.structs.replace(INSIDE, inline=b"old")]),
            "CURRENT in None has other bytes than it says",
        ),
        Case(
            "objects, parts of objects and bytes inside",
            lambda: job().upload("file", holds=b"0123456789").decide(1, files=[WHOLE, PART, INSIDE]),
        ),
    ),
    "RisingTokens": (
        Case("a fenced generation decides", lambda: job().fence().decide(1, token=1), "record 3 has token 1 after 2"),
        Case("a token that is no position", lambda: History().fence(token=5), "the FENCE at 1 has token 5"),
        Case("no FENCE", lambda: job().decide(1, token=9), "generation 9 stands in generation 1"),
        Case(
            "a falling id", lambda: job().checkpoint(2, 1).fence().checkpoint(1, 2), "checkpoint 1 is decided after 2"
        ),
        Case("an id twice", lambda: job().checkpoint(2, 1).checkpoint(2, 2), "checkpoint 2 is decided after 2"),
        Case(
            "one generation after the other, and ids that leap",
            lambda: job().checkpoint(1, 1).fence().lead().checkpoint(7, 2).finish("failed").fence(),
        ),
    ),
    "OneLeader": (
        Case(
            "a token alone does not decide",
            lambda: job().checkpoint(1, 1).by("leader-b").checkpoint(2, 2),
            "log record 3 is of leader-b, the generation is led by leader-a",
        ),
        Case(
            "a replaced coordinator whose token is still the highest",
            lambda: job().lead("leader-b").by("leader-a").finish("failed"),
            "log record 3 is of leader-a, the generation is led by leader-b",
        ),
        Case(
            "LEAD and FENCE pass the lead on",
            lambda: job().checkpoint(1, 1).lead("leader-b").checkpoint(2, 2).by("leader-c").fence().checkpoint(3, 3),
        ),
    ),
    "IdsAreUsedOnce": (
        Case(
            "a successor uses an id again",
            lambda: History().trigger(3, 1, 100).trigger(3, 1, 250),
            "had heard of another one with that id (generation 1, 100)",
        ),
        Case(
            "a repeated trigger, another id, and another process",
            lambda: History().trigger(3, 1, 100).trigger(3, 1, 100).trigger(4, 1, 250).trigger(3, 1, 250, "slot-0-9"),
        ),
    ),
    "DroppedStaysDropped": (
        Case(
            "a dropped checkpoint is restored",
            lambda: listed(1, 2).fence(1, says=listing(2)),
            "generation 4 restores checkpoint 1, which was dropped",
        ),
        Case(
            "a dropped checkpoint is kept again",
            lambda: listed(1, 2).checkpoint(3, 3, says=listing(2)),
            "log record 4 keeps 2, which was dropped",
        ),
        Case(
            "the newest decision is dropped",
            lambda: listed(1).fence(says=listing()),
            "log record 3 drops 2, the newest decision",
        ),
        Case(
            "a checkpoint is restored that is no longer the newest, and is kept",
            lambda: listed(1).checkpoint(2, 2, says=listing(2)).fence(2, says=listing(2, 3)),
        ),
    ),
    "NothingNeededIsDeleted": (
        Case(
            "a slot deletes an orphan",
            lambda: job().upload("orphan").fence().delete(data("orphan"), actor=SLOT),
            "slot/orphan: tasks never delete what checkpoints are made of",
        ),
        Case(
            "a slot deletes an old manifest",
            lambda: job().checkpoint(1, 1).checkpoint(2, 2).delete(MANIFEST, actor=SLOT),
            "manifest.json: tasks never delete what checkpoints are made of",
        ),
        Case(
            "as many manifests as the job retains stay",
            lambda: (
                job(retained=2)
                .checkpoint(1, 1)
                .checkpoint(2, 2)
                .checkpoint(3, 3)
                .delete(MANIFEST, PATHS.manifest(2, 1))
            ),
            "2-1/manifest.json, which retained checkpoint 2 needs",
        ),
        Case(
            "a file that a retained checkpoint shares with an older one",
            lambda: job().checkpoint(1, 1, "shared").checkpoint(2, 2, "shared").delete(data("shared")),
            "which retained checkpoint 2 needs",
        ),
        Case(
            "a restored checkpoint, before its generation has one of its own",
            lambda: job().checkpoint(1, 1, "old").checkpoint(2, 2).fence(restored=1).delete(data("old")),
            "which retained checkpoint 1 needs",
        ),
        Case(
            "an upload that a decision names later",
            lambda: job().fence().upload("early").delete(data("early", 2)).checkpoint(1, 1, "early"),
            "of the living generation was deleted: an upload under way",
            also=("WholeManifests",),
        ),
        Case(
            "a manifest before its decision",
            lambda: job().decide(1, appended=False).delete(MANIFEST).decide(1, stored=False),
            "of the living generation was deleted before its decision",
            also=("WholeManifests",),
        ),
        Case(
            "a checkpoint that is refused because of a deleted upload",
            lambda: job().put(PATHS.history, REFUSED),
            "of the living generation lost an upload: it refers to 1 file already deleted",
        ),
        Case(
            "an upload of a generation that the log does not know yet",
            lambda: job().fence().upload("early", token=3).delete(data("early", 3)),
            "of generation 3, which the log does not know: an upload under way",
        ),
        Case(
            "an upload of a checkpoint that ended undecided",
            lambda: job().upload("aborted").checkpoint(1, 1, "f").delete(data("aborted")).checkpoint(2, 2),
        ),
        Case("what nobody needs", nothing_needed),
    ),
    "AcksOfThisGeneration": (
        Case(
            "a file of a fenced generation that no decision confirmed",
            lambda: job().upload("late").fence().checkpoint(1, 1, "late", "own"),
            "checkpoint 1 of generation 2 holds bank/data/1/slot/late of generation 1",
        ),
        Case(
            "the manifest of an older generation",
            lambda: job().fence().decide(1, token=1, says={"token": 2}),
            "the decision of generation 2 names a manifest of 1",
        ),
        Case(
            "the manifest of another checkpoint",
            lambda: job().decide(1, says={"checkpoint": 2}),
            "names a manifest of 1",
        ),
        Case(
            "files of earlier decisions, whoever wrote them",
            lambda: (
                job().checkpoint(1, 1, "a").fence(1).checkpoint(2, 2, "a", "b").fence(2).checkpoint(3, 3, "a", "b", "c")
            ),
        ),
    ),
    "UnknownBlocks": (
        Case(
            "the next append",
            lambda: History().answer(2, PutOutcome.UNKNOWN).request("put_if_absent", PATHS.log_record(3)),
            "puts log record 3 while 2 is undecided",
        ),
        Case(
            "deleting a file",
            lambda: History().answer(2, PutOutcome.UNKNOWN).request("delete", data("file")),
            f"{COORDINATOR} deletes {data('file')} while log record 2 is undecided",
            once=True,
        ),
        Case(
            "deleting a manifest",
            lambda: History().answer(2, PutOutcome.UNKNOWN).request("delete", MANIFEST),
            f"{COORDINATOR} deletes {MANIFEST} while log record 2 is undecided",
            once=True,
        ),
        Case("it landed", lambda: undecided(PutOutcome.CREATED)),
        Case("another one is there", lambda: undecided(PutOutcome.EXISTS)),
    ),
    "NoBugIsReported": (
        Case(
            "a violation of the protocol",
            lambda: job().fence(says={"reason": "ProtocolViolation: barrier 3 after 3"}),
            "log record 2 tells of a bug: ProtocolViolation: barrier 3 after 3",
        ),
        Case(
            "trouble from outside", lambda: job().fence(says={"reason": "ConnectionError: the data connection broke"})
        ),
    ),
    "FirstObjectFirst": (
        Case(
            "the first object stays",
            lambda: staged().delete(*STAGED[1:], actor=SLOT),
            "the first object of the same decided rows, is there",
        ),
        Case("the first object goes first", lambda: staged().delete(*STAGED, actor=SLOT)),
    ),
}

READERS: Table = {
    "OnlyDecidedIsVisible": (
        Case(
            "a file before its decision",
            lambda: job().checkpoint(1, 1).publish(final_name(1), final_name(2)),
            f"{final_name(2)} is visible",
        ),
        Case(
            "a transaction before its decision",
            lambda: two_sinks().decide(1, committables=[TRANSACTION]).commit(b'{"transaction":"1-0-2"}'),
            "sink side shows a transaction that no completed checkpoint lists",
        ),
        Case("what is decided", decided_is_shown),
        Case(
            "a file before its decision, which packs others", lambda: packed().publish(final_name(61)), final_name(61)
        ),
        Case("files of a packed set", lambda: packed().publish(final_name(1), final_name(60))),
    ),
    "OnlyReadIsVisible": (
        Case(
            "rows that no checkpoint covers",
            lambda: two_sinks(OnlyReadIsVisible).checkpoint(1, 1).side(1).read("later", 0, 1, 2).side("later"),
            "which no completed checkpoint covers",
        ),
        Case("rows that a checkpoint covers", lambda: two_sinks(OnlyReadIsVisible).checkpoint(1, 1).side(1)),
    ),
    "NothingDoubled": (
        Case(
            "a row twice: its number and its place in the order come again, too",
            lambda: two_sinks().read("rows", 0, 0, 3).side("rows").side("rows", spoil=last(1)),
            "sink side shows",
            also=("NothingReordered", "WholeState"),
        ),
        Case(
            "a record that is read and counted twice",
            lambda: two_sinks().read("rows", 0, 0, 3).side("rows").read("again", 0, 2, 3).side("again"),
            "sink side shows",
            also=("NothingReordered",),
        ),
        Case(
            "both legs, the same number in another split or source, and the same row in another sink",
            lambda: History("two-inputs").fence().checkpoint(1, 3).given(1, place, PLACES).out(1).side(1),
        ),
    ),
    "SavepointsAreVisible": (
        Case(
            "a sink does not show all of its checkpoint yet",
            lambda: two_sinks().checkpoint(1, 4).out(1).savepoint(1),
            "the savepoint of checkpoint 1 was written, but sink side shows 16 of its rows not yet",
        ),
        Case(
            "it has transactions",
            lambda: job().checkpoint(1, 4).out(1).savepoint(1, sinks=()),
            "the savepoint of checkpoint 1 has transactions of sink out",
        ),
        Case(
            "a file was replaced while it was copied",
            lambda: job().checkpoint(1, 4, "f", "g").out(1).savepoint(1, lost="/g"),
            "than the checkpoint had",
        ),
        Case(
            "of a checkpoint that another generation decided",
            lambda: job().checkpoint(1, 4).out(1).savepoint(1, token=7),
            "generation 7, is of none that is complete",
        ),
        Case(
            "all of it is visible, and more",
            lambda: two_sinks().checkpoint(1, 4, "f").out(1).side(1).checkpoint(2, 6, "g").out(2).side(2).savepoint(1),
        ),
    ),
    "NothingReordered": (
        Case(
            "rows of a split that change places",
            lambda: (
                two_sinks()
                .read("rows", 0, 0, 6)
                .side("rows", spoil=lambda rows: pair(rows)[1:])
                .side("rows", spoil=lambda rows: pair(rows)[:1])
            ),
            "sink side shows",
        ),
        Case(
            "state saw them in another order",
            lambda: two_sinks().read("rows", 0, 0, 6).side("rows", spoil=pair_numbered(1, 0)),
            "sink side shows",
        ),
        Case(
            "the later row has the same number",
            lambda: two_sinks().read("rows", 0, 0, 6).side("rows", spoil=pair_numbered(0, 0)),
            "sink side shows",
            also=("WholeState",),
        ),
        Case(
            "splits in any order",
            lambda: two_sinks().read("one", 0, 0, 6).read("other", 1, 0, 6).side("other").side("one"),
        ),
    ),
    "NothingLost": (
        Case(
            "the last transfer, in one of the sinks, where a hole shows in no number",
            lambda: shown(spoil=but_last(2)).end(),
            "sink side lacks 2 rows of a-1, e.g. [(5, 0), (5, 1)]",
        ),
        Case("everything", lambda: job().checkpoint(1, 6).end(), "sink out lacks 12 rows of a-0"),
        Case(
            "what the last checkpoint of a cancelled job had read",
            lambda: shown(upto=4, spoil=but_last(2)).finish("cancelled").end(expected_all=False),
            "sink side lacks 2 rows of a-1, e.g. [(3, 0), (3, 1)]",
        ),
        Case(
            "the same of a job that is stopped without a FINISH, and keeps its checkpoints",
            lambda: shown(upto=4, spoil=but_last(2)).end(expected_all=False),
            "sink side lacks 2 rows of a-1, e.g. [(3, 0), (3, 1)]",
        ),
        Case(
            "a finished job, over several checkpoints, each sink at its own pace",
            lambda: two_sinks().checkpoint(1, 4).out(1).checkpoint(2, 6).side(1).side(2).out(2).finish().end(),
        ),
        Case("a stopped job", lambda: shown(upto=4).finish("cancelled").end(expected_all=False)),
        Case("nothing was decided", lambda: two_sinks().finish("cancelled").end(expected_all=False)),
    ),
    "FinishedMeansCommitted": (
        Case(
            "FINISH before the last commit",
            lambda: shown(spoil=but_last(2)).finish().side(1, spoil=last(2)),
            "the log says finished, sink side shows 22 of 24 rows",
        ),
        Case(
            "FINISH after the last commit; a failed or cancelled job may have shown less",
            lambda: (
                two_sinks()
                .finish("failed")
                .fence()
                .finish("cancelled")
                .fence()
                .checkpoint(1, 6)
                .out(1)
                .side(1)
                .finish()
            ),
        ),
    ),
    "WholeState": (
        Case(
            "a lost update gives its number to the next one",
            lambda: (
                two_sinks()
                .read("one", 0, 0, 6)
                .read("other", 1, 0, 6)
                .side("one", "other", spoil=pair_numbered(0, 0, same_split=False))
            ),
            "with the same number",
        ),
        Case(
            "state counted one too many, and all rows are there",
            lambda: shown(spoil=lambda rows: account_raised(rows, n=1)).end(),
            "has no leg 1 of",
        ),
        Case(
            "the same of a stopped job, in a sink that shows whole checkpoints",
            lambda: job().checkpoint(1, 4).out(1, spoil=lambda rows: account_raised(rows, n=1)).end(expected_all=False),
            "sink out: account",
            also=("OneCut",),
        ),
        Case(
            "a leg in an open file, and a later one of its account is visible",
            lambda: (
                two_sinks().checkpoint(1, 4).side(1).keeps(OLDER).out(1, spoil=but_the_older).end(expected_all=False)
            ),
        ),
        Case(
            "the same, and the leg is nowhere",
            lambda: two_sinks().checkpoint(1, 4).side(1).out(1, spoil=but_the_older).end(expected_all=False),
            "account 0 has no leg",
            also=("NothingLost", "OneCut"),
        ),
        Case(
            "numbers that begin with 0",
            lambda: shown(spoil=lambda rows: account_raised(rows, n=-1, balance=-rows[0].delta)).end(),
            "has no leg",
        ),
        Case("a forgotten value", lambda: shown(spoil=row_raised(5, balance=1)).end(), "should have balance"),
        Case("a forgotten first value", lambda: shown(spoil=row_raised(11, opened=1)).end(), "whose first is"),
        Case("another greatest value", lambda: shown(spoil=row_raised(11, peak=1)).end(), "greatest"),
        Case(
            "an account with a gap does not hide the others",
            lambda: shown(upto=4, spoil=without_balances_but_the_first_account).end(expected_all=False),
            "should have balance",
        ),
        Case(
            "a leg too many behind the second shuffle",
            lambda: shown(spoil=row_raised(11, m=1)).end(),
            "the legs of a-0 are not numbered 1 to 13",
        ),
        Case(
            "a number twice behind the second shuffle",
            lambda: shown(spoil=row_raised(4, m=-1)).end(),
            "the legs of a-0 are not numbered 1 to 12",
        ),
        Case(
            "one state, two sinks; rows of a later number first",
            lambda: two_sinks().checkpoint(1, 6).out(1).side(1, spoil=of_split(1)).side(1, spoil=of_split(0)).end(),
        ),
        Case(
            "nothing is asked of a second shuffle where there is none",
            lambda: History("union").fence().checkpoint(1, 6).given(1, lambda row: row.m, {0}).out(1).end(),
        ),
    ),
    "OneCut": (
        Case(
            "half a transfer",
            lambda: job().checkpoint(1, 1).out(1, spoil=lambda rows: rows[:1]),
            "1 legs of ('a', 0) are visible, the last of transfer 0",
        ),
        Case(
            "money from nowhere",
            lambda: job().checkpoint(1, 2).out(1, spoil=row_raised(0, delta=1)),
            "the auditor finds 1 too much",
            also=("TrueRows",),
        ),
        Case(
            "state of a later cut",
            lambda: job().checkpoint(1, 2).out(1, spoil=row_raised(-1, n=1)),
            "the last is number",
        ),
        Case(
            "a checkpoint that nobody decided",
            lambda: job().checkpoint(1, 2).out(1, at=2),
            "said to be checkpoint 2, which is not complete",
        ),
        Case(
            "a split is lacking",
            lambda: job().checkpoint(1, 2).out(1, spoil=of_split(0)),
            "its position of ('a', 1) is 2, shown are 0 transfers",
        ),
        Case(
            "a split that the checkpoint does not have",
            lambda: (
                job()
                .decide(1, positions={("a", 0): 2})
                .read("one", 0, 0, 2)
                .read("other", 1, 0, 2)
                .out("one", "other", at=1)
            ),
            "its position of ('a', 1) is 0, shown are 2 transfers",
        ),
        Case(
            "rows of the next checkpoint",
            lambda: job().checkpoint(1, 2).checkpoint(2, 4).out(1, 2, at=1),
            "checkpoint 1 is visible; its position of ('a', 0) is 2, shown are 4 transfers",
        ),
        Case(
            "a checkpoint is passed over; a sink without a global committer shows transaction by transaction",
            lambda: (
                two_sinks()
                .checkpoint(1, 2)
                .checkpoint(2, 2)
                .checkpoint(3, 5)
                .out(1)
                .out(2, 3)
                .side(1, spoil=of_split(0))
                .side(1, spoil=of_split(1))
            ),
        ),
    ),
    "TrueRows": (
        Case(
            "rows that agree with each other and with state, and are all wrong",
            lambda: job().checkpoint(1, 6).out(1, spoil=doubled_amounts).finish().end(),
            "which no record gives",
        ),
        Case("every source", lambda: History("two-inputs").fence().checkpoint(1, 6).out(1)),
    ),
}


# ---------------------------------------------------------------- checkers with events of their own


class Upserts:
    """Rows that Redis wrote of one split, reported to `LastValues`."""

    def __init__(self) -> None:
        self._history = History(splits=1, more=(LastValues,)).fence()
        self._judge = next(each for each in self._history.checkers if isinstance(each, LastValues))
        self._last: list[Any] = []
        self.reports = self._history.reports

    def decided(self, checkpoint: int, upto: int, token: int = 1, left_out: int = 0) -> "Upserts":
        """Writes the rows of transfer `upto - 1` without the last `left_out`, then decides a checkpoint of all rows."""
        self._last = self._history.bank.read("a", 0, upto - 1, upto)
        self._judge.on_upserts(token, self._last[: len(self._last) - left_out])
        self._history.decide(checkpoint, positions={("a", 0): upto})
        return self

    def written(self, token: int, **fields: int) -> "Upserts":
        """Writes the last transfer's first leg again, with changed fields."""
        self._judge.on_upserts(token, [msgspec.structs.replace(self._last[0], **fields)])
        return self


class Stored:
    """Rows of one split that `stable` releases and the target gets, reported to `StableRows`."""

    def __init__(self) -> None:
        self._history = History(splits=1, more=(StableRows,)).fence()
        self._judge = next(each for each in self._history.checkers if isinstance(each, StableRows))
        self._rows = self._history.bank.read("a", 0, 0, 6)
        self.reports = self._history.reports

    def decided(self, checkpoint: int, upto: int) -> "Stored":
        self._history.decide(checkpoint, positions={("a", 0): upto})
        return self

    def restored(self, checkpoint: int) -> "Stored":
        self._history.fence(restored=checkpoint)
        return self

    def released(self, first: int, upto: int, *, backwards: bool = False, written: bool = True) -> "Stored":
        rows = [row for row in self._rows if first <= row.seq < upto]
        token = self._history.facts.token
        self._judge.on_released(token, rows[::-1] if backwards else rows)
        if written:
            self._judge.on_upserts(token, rows)
        return self


def dropped_by(actor: str, *, decided: bool = False) -> Told:
    """Drops, as `actor`, a file that "ours" has staged; two jobs share the target."""
    world = World(next(each for each in map(draw, itertools.count()) if each.twins))
    assert world.twin is not None
    world._processes.add("ours")
    world.twin._processes.add("another's")
    world._target_wrote("ours", "_staging/file", b"rows")
    if decided:
        world.facts.committables.add(b"_staging/file")
    world._target_dropped(actor, "_staging/file")
    world._target_dropped("another's", "_staging/file")  # the file is already gone
    return Told(world.violations)


def hanging_open(condition: str, reason: str, *, after_s: int = 60) -> Told:
    """Looks twice at a job with this condition whose source "a" hangs."""
    reports: list[tuple[str, str]] = []
    simulation = Simulation(1)
    hanging = HangingOpens(simulation, Hang("a", 0, 90_000), lambda *said: reports.append(said), lambda what: None)
    hanging._waiting[SimProcess(simulation, "slot-0")] = 0
    status = SimpleNamespace(phase="restoring", token=1, condition=condition, condition_reason=reason)
    runner: Any = SimpleNamespace(status=lambda: status)
    hanging.look(runner, 1_000)
    simulation.run_for(after_s)
    hanging.look(runner, 1_000)
    return Told(reports)


OWN: Table = {
    "LastValues": (
        Case("not written", lambda: Upserts().decided(1, 1, left_out=1), "checkpoint 1 is decided"),
        Case("a zombie's", lambda: Upserts().decided(1, 1, token=2).written(1), "over a value of generation 2"),
        Case("of torn state", lambda: Upserts().decided(1, 1).written(1, balance=1), "which is not leg"),
        Case("before their decisions", lambda: Upserts().decided(1, 1).decided(2, 2)),
        Case("of a successor", lambda: Upserts().decided(1, 1).decided(2, 2, token=2)),
    ),
    "StableRows": (
        Case("undecided", lambda: Stored().decided(1, 1).released(0, 2), "before the decision"),
        Case("again", lambda: Stored().decided(1, 2).released(0, 2).released(0, 1), "after leg"),
        Case("backwards", lambda: Stored().decided(1, 6).released(0, 6, backwards=True), "earlier rows are missing"),
        Case(
            "not restored",
            lambda: Stored().decided(1, 1).decided(2, 6).released(0, 6).restored(2).released(5, 6),
            "earlier rows are missing",
        ),
        Case(
            "lost on the way",
            lambda: Stored().decided(1, 2).released(0, 2, written=False).decided(2, 6).restored(2).released(2, 6),
            "never reached the target",
        ),
        Case("in parts", lambda: Stored().decided(1, 2).released(0, 2).decided(2, 6).released(2, 6)),
        Case("restored", lambda: Stored().decided(1, 2).decided(2, 6).released(0, 6).restored(2).released(2, 6)),
    ),
    "OthersRowsStay": (
        Case("dropped by the other job", lambda: dropped_by("another's"), "another's, of another job of that name"),
        Case("a decided file", lambda: dropped_by("another's", decided=True), "a decided file"),
        Case("dropped by its own job", lambda: dropped_by("ours")),
    ),
    "TroubleIsTold": (
        Case("untold", lambda: hanging_open("RECOVERING", "restoring"), "a hangs in its open"),
        Case("told of another operator", lambda: hanging_open("WAITING_RESTORE", "opening out for 60 s"), "told is:"),
        Case("told", lambda: hanging_open("WAITING_RESTORE", "opening a for 60 s")),
        Case("too early to be told", lambda: hanging_open("RECOVERING", "", after_s=2)),
        Case("beside trouble of the store", lambda: hanging_open("WAITING_STORE", "no answer")),
    ),
}


@each_case(LOG)
def test_judges_of_log_store_and_deletes(judge: str, case: Case) -> None:
    """I1, I2, I3, I5, I7, I8, I9: a checker reports exactly the histories that break its rule."""
    check(judge, case)


@each_case(READERS)
def test_judges_of_what_readers_see(judge: str, case: Case) -> None:
    """I4, I5, I6, I10: a checker reports exactly the histories that break its rule."""
    check(judge, case)


@each_case(OWN)
def test_judges_that_hear_something_of_their_own(judge: str, case: Case) -> None:
    """I5, F7: a checker reports exactly the cases that break its rule."""
    check(judge, case)


def test_every_checker_is_shown_to_speak_and_to_be_silent() -> None:
    """Every checker has a history that breaks its rule and a history that keeps the rule."""
    assert untold({**LOG, **READERS}, {each.__name__ for each in (*CHECKERS, *TARGET_CHECKERS)}) == []
    assert untold(OWN, set(OWN)) == []
