"""State of a job that is started from a savepoint, then from another, then from the first again.

The tests cover states and moves in every order up to three moves deep, and at random up to twelve. A state is the
content of the newest checkpoint; `S+2` stands for savepoint S and two checkpoints since. A line is the result of an
unbroken sequence of `latest` after one start. Each start takes a checkpoint, except for the marked row.

| move                    | newest checkpoint is of S's line | of another line, or the job's own | none     |
|-------------------------|----------------------------------|-----------------------------------|----------|
| restore=latest          | goes on                          | goes on                           | empty    |
| restore=S               | goes on                          | refused, nothing is written       | S        |
| … with allow_replay     | S again; S itself goes on        | S                                 | S        |
| … without a checkpoint  | S is the newest                  | S is the newest                   | S        |
| restore=N, allow_replay | N, in a line of its own          | N, in a line of its own           | refused  |
| restore=none, the same  | empty, in a line of its own      | empty, in a line of its own       | empty    |

Claims are by store and lineage: `test_claims_go_by_store_and_lineage` has their table.
"""

import random
import uuid
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from coordinator_world import options, spec

from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, encode_manifest, load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.log.restore_choice import start_run
from barrier_runtime.coordinator.log.savepoint import CLAIM_FILE, Savepoint, encode_savepoint
from barrier_runtime.coordinator.savepoint_files import claimed_by
from barrier_runtime.coordinator.savepoint_import import begin_with_savepoint
from barrier_runtime.coordinator.store_calls import append_record
from barrier_runtime.coordinator.wire.messages import JobSpec, ManifestRef
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex
from tests.drawn import some

JOB = "flights"
CONTENT = "position"


def taken_of(name: str, job: str = "elsewhere") -> Savepoint:
    snapshots = tuple(OperatorSnapshot("numbers", index, 2, {CONTENT: name.encode()}) for index in range(2))
    manifest = Manifest(
        job=job, lineage=f"line-{name}", checkpoint=7, token=1, created_wall_ms=0, parallelism=2, max_parallelism=128,
        operators=snapshots, parent_position=1, parent_sha256="",
    )  # fmt: skip
    return Savepoint(id=f"id-{name}", taken=manifest)


def in_a_folder(savepoint: Savepoint) -> str:
    url = f"memory://savepoint-{uuid.uuid4().hex}"
    open_store(url).put("savepoint.json", encode_savepoint(savepoint))
    return url


URLS = {name: in_a_folder(taken_of(name)) for name in "ST"}


def of(**changes: object) -> JobSpec:
    return spec(**{"job": JOB, "run_id": uuid.uuid4().hex, "checkpoints": options(retained=1_000), **changes})


def begin(store: MemoryStore, url: str, job: JobSpec | None = None, mode: str = "no_claim") -> str:
    return begin_with_savepoint(store, url, job or of(), mode, sleep=lambda seconds: None)  # type: ignore[arg-type]


def newest(store: MemoryStore) -> str:
    """Returns the content of the job's newest checkpoint; "" without a checkpoint."""
    view = read_log(store, Paths(JOB))
    return content_of(store, complete_of(view.completes[0])) if view.completes else ""


def content_of(store: MemoryStore, decided: Complete) -> str:
    manifest = load_manifest(decided, store.get)
    assert manifest is not None
    return manifest.operators[0].values[CONTENT].decode()


def run(store: MemoryStore, job: JobSpec, checkpoints: int = 1) -> str:
    """Writes the records of a run: FENCE, checkpoints, FINISH. Returns the restored content."""
    view = read_log(store, Paths(JOB), restore=int(job.restore) if job.restore.isdigit() else None)
    choice = start_run(job, view)
    log, records = DecisionLog(JOB, view), RecordBuilder(job, Identity(uuid.uuid4().hex, "host"))
    log.choose_restore(choice.entry)
    restored = content_of(store, complete_of(choice.entry)) if choice.entry is not None else ""
    fence = append_record(store, JOB, log, records.fence(log, choice, "a test", 0, 0), lambda seconds: None)
    assert isinstance(fence, Appended)
    line, token, content = fence.entry.record.lineage, fence.permit.token, restored
    for _ in range(checkpoints):
        name, _, steps = content.partition("+")
        content = f"{name}+{int(steps or 0) + 1}"
        number = log.checkpoint_floor + 1
        manifest = msgspec.structs.replace(
            taken_of(content).taken, job=JOB, checkpoint=number, token=token, lineage=line
        )
        data, key = encode_manifest(manifest), Paths(JOB).manifest(number, token)
        store.put(key, data)
        complete = records.complete(log, number, line, ManifestRef(key, sha256_hex(data)), 0)
        append_record(store, JOB, log, complete, lambda seconds: None)
    append_record(store, JOB, log, records.finish(log, "cancelled", 0), lambda seconds: None)
    return restored


# ---------------------------------------------------------------- the model


@dataclass(frozen=True)
class Job:
    """Model of a job. `line` is the savepoint from which the newest checkpoint grew, or another word without one."""

    newest: str = ""
    line: str = ""
    checkpoints: tuple[str, ...] = field(default=())

    def holding(self, content: str, line: str) -> "Job":
        return replace(self, newest=content, line=line, checkpoints=(*self.checkpoints, content))

    def advanced(self, content: str, line: str) -> "Job":
        name, _, steps = content.partition("+")
        return self.holding(f"{name}+{int(steps or 0) + 1}", line)


MOVES = ("latest", "S", "T", "S!", "T!", "S!0", "1!", "none!")


def expected(job: Job, move: str) -> Job | None:
    """Returns the job after `move`; None if the move is refused."""
    wanted, replays = move.rstrip("!0"), "!" in move
    if wanted == "latest":
        return job.advanced(job.newest, job.line)
    if wanted == "none":
        return job.advanced("", "none" if job.checkpoints else job.line)
    if wanted == "1":
        line = job.line if len(job.checkpoints) == 1 else "replay"  # the newest is nothing older
        return job.advanced(job.checkpoints[0], line) if job.checkpoints else None
    if job.line == wanted and not (replays and job.newest != wanted):
        begun = job
    elif job.checkpoints and not replays:
        return None
    else:
        begun = job.holding(wanted, wanted)
    return begun if move.endswith("0") else begun.advanced(begun.newest, wanted)


def first_number(store: MemoryStore) -> str:
    view = read_log(store, Paths(JOB), completes=1_000)
    return str(complete_of(view.completes[-1]).checkpoint) if view.completes else "1"


def do(store: MemoryStore, move: str) -> None:
    wanted, replays = move.rstrip("!0"), "!" in move
    if wanted in URLS:
        begin(store, URLS[wanted], of(allow_replay=replays))
        wanted = "latest"
    elif wanted == "1":
        wanted = first_number(store)
    if not move.endswith("0"):
        run(store, of(restore=wanted, allow_replay=replays))


def check(store: MemoryStore, job: Job, move: str, story: str) -> Job:
    after, before = expected(job, move), store.keys()
    if after is None:
        with pytest.raises(InvalidJob):
            do(store, move)
        assert store.keys() == before, f"{story}: nothing is written"
        return job
    do(store, move)
    assert newest(store) == after.newest, story
    return after


def copied(store: MemoryStore) -> MemoryStore:
    other = MemoryStore()
    for key in tuple(store.keys()):
        other.put(key, store.get(key))
    return other


@pytest.mark.slow
def test_every_order_of_three_moves_ends_in_the_state_that_was_asked_for():
    todo = [(MemoryStore(), Job(), ())]
    while todo:
        store, job, moves = todo.pop()
        for move in MOVES:
            here = copied(store)
            after = check(here, job, move, " ".join((*moves, move)))
            if len(moves) < 2:
                todo.append((here, after, (*moves, move)))


@pytest.mark.slow
@pytest.mark.draws
def test_twelve_moves_in_any_order_end_in_the_state_that_was_asked_for():
    for seed in some(40):
        store, job, rng, moves = MemoryStore(), Job(), random.Random(seed), []
        for _ in range(12):
            moves.append(rng.choice(MOVES))
            job = check(store, job, moves[-1], f"seed {seed}: {' '.join(moves)}")


def test_a_job_put_on_another_savepoint_is_refused_the_first_with_the_reason():
    store = MemoryStore()
    for move in ("S", "T!"):
        do(store, move)
    with pytest.raises(
        InvalidJob, match="began with this savepoint, was put on another state since, and has completed"
    ):
        begin(store, URLS["S"])
    assert "it is checkpoint" in begin(store, URLS["S"], of(allow_replay=True))
    assert newest(store) == "S"


def test_a_replay_of_what_the_job_has_just_begun_with_writes_nothing():
    store = MemoryStore()
    begin(store, URLS["S"])
    before = store.keys()
    assert "began with this savepoint" in begin(store, URLS["S"], of(allow_replay=True))
    assert store.keys() == before
    run(store, of(), checkpoints=1)
    assert "it is checkpoint" in begin(store, URLS["S"], of(allow_replay=True))


@pytest.mark.slow
def test_a_savepoint_is_known_after_more_runs_than_are_read_back():
    store = MemoryStore()
    begin(store, URLS["S"])
    for _ in range(70):
        run(store, of(), checkpoints=1)
    assert "began with this savepoint" in begin(store, URLS["S"])
    assert newest(store) == "S+70"


def test_a_log_of_an_earlier_release_tells_its_savepoint_by_the_run_that_imported_it():
    """Lineages of earlier releases carry no mark."""
    store = MemoryStore()
    run(store, of(run_id="savepoint-id-S", restore="latest"))
    run(store, of())
    assert "began with this savepoint" in begin(store, URLS["S"])
    run(store, of(restore="none", allow_replay=True))
    with pytest.raises(InvalidJob, match="was put on another state since"):
        begin(store, URLS["S"])


def test_a_fork_under_another_name_has_a_line_of_its_own():
    """Two jobs in one store use the same savepoint: neither continues with the other's progress."""
    store, fork = MemoryStore(), spec(job="fork", run_id="fork-1")
    begin(store, URLS["S"])
    run(store, of())
    assert "it is checkpoint 7 of job fork now" in begin(store, URLS["S"], fork)
    assert "job fork began with this savepoint and has reached checkpoint 7" in begin(store, URLS["S"], fork)
    assert "job flights began with this savepoint and has reached checkpoint 8" in begin(store, URLS["S"])
    url = in_a_folder(taken_of("S"))
    begin(store, url, fork, mode="claim")
    assert "job flights began with the savepoint" in begin(store, url, mode="claim"), "who claimed it plays no part"


# ---------------------------------------------------------------- claims


def test_claims_go_by_store_and_lineage():
    """
    | whose command, when the savepoint is gone              | is told                                  |
    |--------------------------------------------------------|------------------------------------------|
    | the claimer's, again                                   | it goes on                               |
    | the claimer's, put on another state since              | there is no savepoint any more           |
    | a job of the same name in another store, its own state | the same, and where the claimer's are    |
    | … which began with it before it was claimed            | it goes on, and who claimed it           |
    """
    url, here, there, early = (
        in_a_folder(taken_of("S")),
        MemoryStore("here"),
        MemoryStore("there"),
        MemoryStore("early"),
    )
    begin(early, url)
    run(there, of())
    begin(here, url, mode="claim")
    owner = claimed_by(url)
    assert owner is not None
    assert (owner.job, owner.store, owner.savepoint) == (JOB, "memory://here", "id-S")
    run(here, of())
    for mode in ("claim", "no_claim"):
        assert "claimed the savepoint" in begin(here, url, mode=mode)
        said = begin(early, url, mode=mode)
        assert "began with the savepoint" in said
        assert "which job 'flights' has claimed since (its checkpoints are in memory://here)" in said
        with pytest.raises(InvalidJob, match=r"job 'flights' claimed it.*memory://here.*completed checkpoint 1 of its"):
            begin(there, url, mode=mode)
    assert newest(here) == "S+1"
    begin(here, URLS["T"], of(allow_replay=True))
    with pytest.raises(InvalidJob, match=r"there is no savepoint in .* any more"):
        begin(here, url, mode="claim")
    assert newest(here) == "T"


def test_a_job_of_the_same_name_in_another_store_cannot_claim_what_is_claimed():
    url, here, there = in_a_folder(taken_of("S")), MemoryStore("here"), MemoryStore("there")
    begin(here, url)
    begin(there, url)
    run(there, of())
    open_store(url).put(CLAIM_FILE, b'{"version":1,"job":"flights","store":"memory://here","savepoint":"id-S"}')
    empty = MemoryStore("empty")
    with pytest.raises(InvalidJob, match=r"was claimed by job 'flights' .its checkpoints are in memory://here"):
        begin(empty, url, mode="claim")
    assert empty.keys() == ()
    assert "began with this savepoint" in begin(there, url, mode="claim"), "it has its copy, and takes nothing"
    assert open_store(url).get("savepoint.json")
    assert "began with this savepoint" in begin(here, url, mode="claim")
    assert not [info for info in open_store(url).list("") if info.key == "savepoint.json"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_claim_of_an_earlier_release_counts_where_the_log_has_an_import(begun: bool):
    """The claim of an earlier release holds only the name of the job."""
    url, store = in_a_folder(taken_of("S")), MemoryStore()
    if begun:
        begin(store, url)
    run(store, of())
    open_store(url).delete(["savepoint.json"])
    open_store(url).put(CLAIM_FILE, JOB.encode())
    if begun:
        assert "claimed the savepoint" in begin(store, url, mode="claim")
    else:
        with pytest.raises(InvalidJob, match=r"any more: job 'flights' claimed it.*Job flights has completed"):
            begin(store, url, mode="claim")


def test_a_claim_of_an_earlier_release_counts_for_the_job_that_it_names_alone():
    url, store = in_a_folder(taken_of("S")), MemoryStore()
    begin(store, URLS["T"])
    open_store(url).delete(["savepoint.json"])
    open_store(url).put(CLAIM_FILE, b"another-job")
    with pytest.raises(InvalidJob, match=r"any more: job 'another-job' claimed it"):
        begin(store, url)
