"""Return to an older release: the older release names the required release, reports no damage, and writes nothing.

The newer release's data is in the log or in the newest manifest; for leases see `server/test_lease`.
"""

import asyncio
import hashlib
import re

import msgspec
import pytest
from coordinator_world import Coordinator, keys_of, new_generation, options, spec, started

from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.log.manifest import MANIFEST_VERSION, inline_data, packed
from barrier_runtime.coordinator.log.records import RECORD_VERSION, decode_record, encode_record
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, delete_orphans, report_of
from barrier_runtime.coordinator.server.jobs import JobDirectory, NotHere
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.store_calls import check_permit, delete_in_order
from barrier_runtime.runtime.sinks.pending_transactions import read_pending
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.paths import Paths

PATHS = Paths("flights")
JOB = spec(checkpoints=options(retained=1))
NEWER = {"record": RECORD_VERSION + 1, "manifest": MANIFEST_VERSION + 1}
REMEDY = "a newer release wrote it: use that release, or a newer one"
BOTH = pytest.mark.parametrize("newer", ["record", "manifest"])


def job_of(newer: str) -> MemoryStore:
    """FENCE and COMPLETE 1, of which a newer release wrote the head, or the manifest."""
    store = MemoryStore()
    coordinator, *slots = started(store, JOB)
    coordinator.checkpoint(*slots)
    key = PATHS.log_record(2)
    record = decode_record(key, store.get(key))
    if newer == "manifest":
        was, becomes = (f'"version":{version}'.encode() for version in (MANIFEST_VERSION, NEWER[newer]))
        inside = inline_data(record)
        assert inside is not None
        manifest = inside.replace(was, becomes, 1)
        sha256 = hashlib.sha256(manifest).hexdigest()
        record = msgspec.structs.replace(record, sha256=sha256, inline=packed(manifest))
    else:
        record = msgspec.structs.replace(record, version=NEWER[newer])
    store.damage(key, encode_record(record))
    return store


def said_of(newer: str) -> str:
    return rf"has version {NEWER[newer]}, this release reads [^:]+: {REMEDY}"


def content(store: MemoryStore) -> dict[str, bytes]:
    return {key: store.get(key) for key in keys_of(store)}


@BOTH
def test_its_program_is_refused_before_the_fence(newer: str) -> None:
    """B6"""
    store = job_of(newer)
    before = content(store)

    async def submitted():
        runner = JobRunner(msgspec.structs.replace(JOB, run_id="again"), store, leader="b", host="h")
        return await asyncio.wait_for(runner.run(), 60)

    outcome = asyncio.run(submitted())
    assert outcome.outcome == "failed"
    assert re.search(said_of(newer), outcome.reason)
    assert content(store) == before


@BOTH
def test_its_slots_find_no_daemon_that_adopts_it(newer: str) -> None:
    """B6: who leads a job writes to the log, and deletes."""
    store = job_of(newer)
    before = content(store)

    async def asked():
        directory = JobDirectory(store, daemon_key=b"k" * 32, leader="b", host="h")
        answer = await directory.for_slot(JOB.job, JOB.run_id)
        await directory.close()
        return answer, directory.jobs

    answer, jobs = asyncio.run(asyncio.wait_for(asked(), 60))
    assert isinstance(answer, NotHere)
    assert (answer.fenced, jobs) == (False, {})
    assert re.search(said_of(newer), answer.reason)
    assert content(store) == before


@BOTH
def test_checks_of_the_store_call_it_newer_and_not_damaged(newer: str) -> None:
    store = job_of(newer)
    for check in (lambda: list(check_store(store, JOB.job, 0, 0)), lambda: read_pending(store, JOB.job)):
        with pytest.raises(InvalidJob, match=said_of(newer)):
            check()


@BOTH
def test_a_check_of_all_jobs_tells_of_a_newer_one_and_goes_on(newer: str) -> None:
    store = job_of(newer)
    other = Coordinator(store, msgspec.structs.replace(JOB, job="trains", run_id="run-t"), leader="t").begin()
    slots = other.slot(0, "t-0"), other.slot(1, "t-1")
    other.run_with(*slots)
    other.checkpoint(*slots)
    new_generation(other, *slots)
    store.put("trains/data/1/slot/file", b"nobody's")
    before = content(store)
    found = check_store(store, None, 0, 10**9)
    flights, trains = (each.report for each in found)
    assert re.search(said_of(newer), flights.unreadable)
    assert (trains.unreadable, trains.checkpoint, trains.damage) == ("", 1, ())
    assert report_of(store, found).exit_code == 2
    deleted = delete_orphans(store, found, sleep=lambda _: None)
    assert content(store) == {key: data for key, data in before.items() if key != "trains/data/1/slot/file"}
    assert [each.report.unreadable for each in deleted] == [flights.unreadable, ""]


def test_who_was_replaced_by_a_newer_release_deletes_nothing_more() -> None:
    """I7: any record after the permit refuses the delete."""
    store = job_of("record")
    store.put("flights/data/1/slot/file", b"x")
    with pytest.raises(InvalidJob, match=said_of("record")):
        delete_in_order(
            store, PATHS, ["flights/data/1/slot/file"], lambda: check_permit(store, PATHS, Permit(1, 1, completed=0))
        )
    assert "flights/data/1/slot/file" in keys_of(store)
