"""Interleavings of the coordinator's messages: the real slot, operators, sinks and channels, without sockets."""

import asyncio
import gc
import json
import threading
import weakref

import pytest
from slot_bench import SOURCE, TARGET, Bench, Feed, Totals, sink_operator

from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    Ack,
    CancelGeneration,
    CheckpointComplete,
    CommitGlobally,
    Committed,
    EventTimeReached,
    Heartbeat,
    HeldBack,
    LowestEventTime,
    ManifestRef,
    Prefetch,
    Register,
    Registered,
    Restored,
    Shutdown,
    Start,
    SubtaskEnded,
    SubtaskFailed,
    SubtaskId,
    Trigger,
)
from barrier_runtime.launch.local_links import LocalDataPlane
from barrier_runtime.operators.base import Capture
from barrier_runtime.runtime.host.process import Heap
from barrier_runtime.state.errors import InvalidJob, ProtocolViolation, Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef


def words(link):
    return [type(message).__name__ for message in link.said if not isinstance(message, Heartbeat)]


def stored(bench):
    return [info.key for info in bench.output.list("")]


# ---------------------------------------------------------------- a generation


async def test_a_slot_tells_of_what_it_has_fetched_for_the_next_move_only(tmp_path):
    bench = Bench(tmp_path)
    bench.tell(Prefetch(3, ManifestRef("gone", "0" * 64), 4, 128))
    told = lambda: bench.links[0].got(Heartbeat)[-1].prefetched if bench.links[0].got(Heartbeat) else None  # noqa: E731
    await bench.until(lambda: told() == 3)
    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.tell(Start(5))
    assert told() == 0, "the generation that begins has taken what it needs, and the rest is let go"
    bench.tell(Prefetch(7, ManifestRef("gone", "0" * 64), 2, 128))
    await bench.until(lambda: told() == 7)


async def test_a_generation_that_has_ended_leaves_no_folder(tmp_path):
    """Except folders with local copies for the next restore."""
    bench = Bench(tmp_path)
    folders = lambda: {path.name.partition("-")[0] for path in (tmp_path / "0").iterdir()}  # noqa: E731
    snapshots = ()
    for token in (5, 6, 7):
        await bench.running(token, token - 5, snapshots)
        await bench.until(lambda token=token: folders() == {str(token)})
        assert folders() == {str(token)}
        snapshots = await bench.checkpoint(token - 4, token)


async def test_a_slot_says_that_it_has_fetched_when_its_databases_rest(tmp_path):
    bench, busy, asked = Bench(tmp_path), True, 0

    def compacts() -> bool:
        nonlocal asked
        asked += 1
        return busy

    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.tell(Start(5))
    bench.slots[0]._execution.later.ends_before_move(compacts)
    bench.tell(Prefetch(7, ManifestRef("gone", "0" * 64), 2, 128))
    bench.tell(Prefetch(8, ManifestRef("gone", "0" * 64), 2, 128))
    await bench.until(lambda: asked >= 3)
    told = lambda: [each.prefetched for each in bench.links[0].got(Heartbeat) if each.prefetched]  # noqa: E731
    assert told() == []
    busy = False
    await bench.until(lambda: told() and told()[-1] == 8)


async def test_what_was_ordered_before_a_restore_is_neither_begun_nor_told_behind_it(tmp_path):
    bench = Bench(tmp_path)
    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.tell(Start(5))
    bench.slots[0]._execution.later.ends_before_move(lambda: True)
    bench.tell(Prefetch(7, ManifestRef("gone", "0" * 64), 2, 128))
    bench.tell(Prefetch(8, ManifestRef("gone", "0" * 64), 2, 128))
    bench.deploy(6)
    await bench.until(lambda: len(bench.links[0].got(Restored)) == 2)
    bench.tell(Start(6))
    bench.tell(Prefetch(9, ManifestRef("gone", "0" * 64), 2, 128))
    told = lambda: {each.prefetched for each in bench.links[0].got(Heartbeat) if each.prefetched}  # noqa: E731
    await bench.until(told)
    assert told() == {9}


async def test_a_file_that_comes_when_the_generation_behind_the_move_runs_goes_again(tmp_path, monkeypatch):
    came, is_there = threading.Event(), threading.Event()
    ref, path = FileRef("000007.sst", 3, "0" * 64, "key"), tmp_path / "ahead"

    def slow(store, paths, copies, folder, slot, order, at_once, ended):
        came.wait()
        path.write_bytes(b"sst")
        copies.fetched(ref, path)
        is_there.set()

    bench = Bench(tmp_path)
    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.tell(Start(5))
    monkeypatch.setattr("barrier_runtime.runtime.prefetching.prefetch", slow)
    bench.tell(Prefetch(7, ManifestRef("manifest", "0" * 64), 2, 128))
    bench.deploy(6)
    await bench.until(lambda: len(bench.links[0].got(Restored)) == 2)
    bench.tell(Start(6))
    came.set()
    copies = bench.slots[0]._res.copies
    await bench.until(lambda: is_there.is_set() and copies.place_of(ref) is None)
    copies.delete_unwanted()
    assert not path.exists()


async def test_unopenable_operator_is_reported_while_a_reader_waits_for_its_server(tmp_path):
    class Away(Feed):
        def reader(self, split):
            raise Unavailable("nobody is there")

    class Unfit(Totals):
        def open(self, context):
            raise InvalidJob("it does not fit")

    bench = Bench(tmp_path, make_operator=Unfit, feed=Away(1))
    bench.deploy(5)
    failure = await bench.failure()
    assert "it does not fit" in failure.error
    assert not failure.retryable
    await bench.close()


async def test_a_slot_restores_starts_takes_a_checkpoint_and_hears_of_its_completion(tmp_path):
    """C4"""
    bench = Bench(tmp_path)
    bench.feed.rows[0] += [1, 2, 3]
    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.tell(Start(5))
    await bench.until(lambda: bench.operators[0].total == 3)
    bench.tell(Trigger(5, 1, 0))
    source, target = await bench.acks(1, 5)
    bench.tell(CheckpointComplete(5, 1))
    assert [source.subtask, target.subtask] == [SubtaskId(SOURCE, 0), SubtaskId(TARGET, 0)]
    assert target.operators[0].values == {"total": b"3"}
    assert bench.operators[0].life == ["opened", "complete 1"]
    assert words(bench.links[0]) == ["Register", "Restored", "Ack", "Ack"]
    await bench.close()


async def test_sources_read_nothing_after_a_pausing_checkpoint_until_an_abort(tmp_path):
    bench = Bench(tmp_path)
    bench.feed.rows[0] += [1, 2, 3]
    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.tell(Start(5))
    await bench.until(lambda: bench.operators[0].total == 3)
    bench.tell(Trigger(5, 1, 0, pause=True))
    bench.feed.rows[0] += [4, 5]
    _, target = await bench.acks(1, 5)
    assert target.operators[0].values == {"total": b"3"}
    totals = [snapshot.values["total"] for snapshot in await bench.checkpoint(2, 5) if "total" in snapshot.values]
    assert totals == [b"3"], "nothing was read in between"
    bench.tell(AbortCheckpoint(5, 1, "no"))
    await bench.until(lambda: bench.operators[0].total == 5)
    bench.tell(Trigger(5, 3, 0, pause=True), CancelGeneration(6, 2))
    await bench.close()


async def test_what_may_wait_waits_while_sources_stand_and_is_dropped_with_its_generation(tmp_path):
    bench, moved = Bench(tmp_path), []
    await bench.running(5)
    merge_later = bench.slots[0]._execution.later.call_when_settled
    merge_later(0.0, lambda: moved.append("first"))
    await bench.until(lambda: moved == ["first"])
    bench.tell(Trigger(5, 1, 0, pause=True))
    merge_later(0.0, lambda: moved.append("second"))
    await bench.acks(1, 5)
    await bench.checkpoint(2, 5)
    assert moved == ["first"]
    bench.tell(AbortCheckpoint(5, 1, "no"))
    await bench.until(lambda: moved == ["first", "second"])
    bench.tell(Trigger(5, 3, 0, pause=True))
    merge_later(0.0, lambda: moved.append("third"))
    bench.tell(CancelGeneration(6, 2))
    await bench.slots[0].closed()
    await bench.running(6)
    await bench.checkpoint(4, 6)
    assert moved == ["first", "second"]
    await bench.close()


async def test_copies_of_another_checkpoint_are_deleted_beside_the_loop(tmp_path, monkeypatch):
    """Between two generations the loop has other things to do than to remove files."""
    bench, threads = Bench(tmp_path), []
    await bench.running(5)
    copies = bench.slots[0]._res.copies
    folders = [copies.new_directory(tmp_path / "copies", number) for number in (1, 2)]
    for number, folder in enumerate(folders, 1):
        folder.mkdir(parents=True)
        copies.add("target", 0, number, folder, ())
    delete = copies.delete_unwanted
    monkeypatch.setattr(copies, "delete_unwanted", lambda: (delete(), threads.append(threading.current_thread())))
    bench.tell(CancelGeneration(6, 2))
    await bench.until(lambda: threads)
    assert threading.main_thread() not in threads
    assert not folders[0].exists()
    assert folders[1].is_dir()
    await bench.close()


async def test_slot_reports_its_last_figures_before_acknowledging_the_final_checkpoint(tmp_path):
    """The job may end with this acknowledgement, and no heartbeat follows."""
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.feed.rows[0] += [1, 2, 3]
    await bench.until(lambda: bench.operators[0].total == 3)
    bench.tell(Trigger(5, 1, 0, stop=True))
    await bench.acks(1, 5)
    told = [type(message) for message in bench.links[0].said]
    assert told[-4:] == [Heartbeat, Ack, Heartbeat, Ack]
    assert bench.links[0].got(Heartbeat)[-1].metrics["records"] == 3
    await bench.close()


async def test_every_order_may_come_twice(tmp_path):
    """C2, C8"""
    bench = Bench(tmp_path)
    bench.deploy(5)
    bench.deploy(5)
    await bench.until(lambda: bench.links[0].got(Restored))
    bench.deploy(5)
    bench.tell(Start(5), Start(5))
    bench.tell(Trigger(5, 1, 0), Trigger(5, 1, 0))
    await bench.acks(1, 5)
    bench.tell(Trigger(5, 1, 0), CheckpointComplete(5, 1), CheckpointComplete(5, 1), Trigger(5, 1, 0))
    bench.tell(Trigger(5, 2, 0))
    await bench.acks(2, 5)
    bench.tell(AbortCheckpoint(5, 2, "no"), AbortCheckpoint(5, 2, "no"), Trigger(5, 2, 0))
    await bench.checkpoint(3, 5)
    bench.tell(CancelGeneration(6, 3), CancelGeneration(6, 3))
    assert words(bench.links[0]) == ["Register", "Restored"] + ["Ack"] * 6
    assert len(bench.operators) == 1
    bench.tell(Shutdown("finished", ""), Shutdown("finished", ""))
    await bench.close()


async def test_orders_of_another_generation_have_no_effect(tmp_path):
    """Z4, C8"""
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.deploy(4)
    bench.tell(
        CancelGeneration(4, 0), Start(4), Trigger(4, 1, 0), CheckpointComplete(4, 9), AbortCheckpoint(4, 1, "old")
    )
    bench.tell(Trigger(6, 1, 0), CheckpointComplete(6, 9), AbortCheckpoint(6, 1, "of a generation not heard of"))
    await bench.checkpoint(1, 5)
    assert bench.slots[0].token == 5
    assert bench.operators[0].life == ["opened", "complete 1"]
    await bench.close()


async def test_a_higher_generation_replaces_a_running_one_without_a_halt(tmp_path):
    bench = Bench(tmp_path)
    bench.feed.rows[0] += [1, 2]
    await bench.running(5)
    await bench.until(lambda: bench.operators[0].total == 2)
    restored = await bench.checkpoint(1, 5)
    bench.feed.rows[0] += [3]
    await bench.running(8, 1, restored)
    await bench.until(lambda: bench.operators[1].total == 3)
    await bench.until(lambda: bench.operators[0].life[-1] == "closed")
    await bench.close()


async def test_a_checkpoint_spans_slots_and_counts_every_row_once(tmp_path):
    """A3, C5"""
    bench = Bench(tmp_path, parallelism=3)
    for rows in bench.feed.rows:
        rows += range(10)
    await bench.running(5)
    bench.tell(Trigger(5, 1, 0))
    acks = await bench.acks(1, 5)
    splits = [json.loads(ack.operators[0].values["splits"])["splits"] for ack in acks[:3]]
    positions = sum(split["rows"] for each in splits for split in each.values())
    totals = sum(int(ack.operators[0].values["total"]) for ack in acks[3:])
    assert positions == totals
    await bench.close()


# ---------------------------------------------------------------- the end of input


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("parallelism", [1, 3])
async def test_a_job_without_any_row_takes_its_final_checkpoint_and_commits_it(tmp_path, parallelism, splits):
    """C18, T7: fewer splits than subtasks, sinks that got nothing, empty transactions."""
    bench = Bench(tmp_path, parallelism, sink_operator, splits)
    bench.feed.end()
    await bench.running(5)
    await bench.until(lambda: all(len(link.got(SubtaskEnded)) == 2 for link in bench.links))
    bench.tell(Trigger(5, 1, 0))
    assert all(ack.ended for ack in await bench.acks(1, 5))
    bench.tell(CheckpointComplete(5, 1))
    await bench.until(lambda: all(link.got(Committed) for link in bench.links))
    assert bench.visible() == []
    await bench.close()


async def test_a_checkpoint_triggered_while_its_input_ends_is_answered_by_everyone(tmp_path):
    """C18: the trigger meets an ended source, a running source, and subtasks between the two."""
    bench = Bench(tmp_path, parallelism=2)
    bench.feed.ended = [True, False]
    await bench.running(5)
    await bench.until(lambda: bench.links[0].got(SubtaskEnded))
    bench.tell(Trigger(5, 1, 0))
    bench.feed.end()
    acks = await bench.acks(1, 5)
    assert acks[0].ended
    bench.tell(CheckpointComplete(5, 1))
    await bench.until(lambda: all(len(link.got(SubtaskEnded)) == 2 for link in bench.links))
    await bench.checkpoint(2, 5)
    await bench.close()


async def test_a_generation_restored_after_part_of_the_input_ended_goes_on_with_the_rest(tmp_path):
    """C18"""
    bench = Bench(tmp_path, 2, sink_operator)
    bench.feed.rows[0] += [1, 2]
    bench.feed.rows[1] += [3]
    bench.feed.ended = [True, False]
    await bench.running(5)
    await bench.until(lambda: bench.links[0].got(SubtaskEnded))
    restored = await bench.checkpoint(1, 5)
    bench.tell(CancelGeneration(9, 1))
    bench.feed.rows[1] += [4]
    bench.feed.end()
    for link in bench.links:
        link.said.clear()
    await bench.running(9, 1, restored)
    await bench.until(lambda: all(len(link.got(SubtaskEnded)) == 2 for link in bench.links))
    await bench.checkpoint(2, 9)
    await bench.until(lambda: bench.visible() == [1, 2, 3, 4])
    await bench.close()


# ---------------------------------------------------------------- cancel and restore


class Gated(Totals):
    """`open` waits for the test."""

    def __init__(self):
        super().__init__()
        self.opening = threading.Event()
        self.go_on = threading.Event()

    def open(self, context):
        self.opening.set()
        assert self.go_on.wait(60)
        super().open(context)


async def test_an_operator_that_is_halted_while_it_opens_is_closed_after_it_has_opened(tmp_path):
    """Otherwise the opened resources (a database, LOCK file, memory) would stay until the process exits."""
    made = iter([Gated(), Totals()])
    bench = Bench(tmp_path, make_operator=made.__next__)
    bench.deploy(5)
    await bench.until(lambda: bench.operators and bench.operators[0].opening.is_set())
    bench.tell(CancelGeneration(6, 0))
    await bench.running(6)  # and the next generation does not wait for that
    gated = bench.operators[0]
    assert gated.life == []
    gated.go_on.set()
    await bench.until(lambda: "closed" in gated.life)
    assert gated.life == ["opened", "closed"]
    assert [m.token for m in bench.links[0].got(Restored)] == [6]
    await bench.close()


async def test_a_generation_halted_while_it_waits_for_its_peers_is_left_behind(tmp_path):
    bench = Bench(tmp_path, parallelism=2)
    bench.slots[0].handle(bench.deployment(5))  # the other slot gets no deployment, so channels never connect
    await bench.until(lambda: bench.operators and bench.operators[0].life)
    bench.tell(CancelGeneration(6, 0))
    await bench.running(6)
    assert [m.token for m in bench.links[0].got(Restored)] == [6]
    await bench.close()


async def test_a_failure_to_open_is_said_and_the_next_generation_may_succeed(tmp_path):
    class Failing(Totals):
        def open(self, context):
            raise OSError("no space left")

    made = iter([Failing(), Totals()])
    bench = Bench(tmp_path, make_operator=made.__next__)
    bench.deploy(5)
    failure = await bench.failure()
    assert (failure.token, failure.retryable) == (5, True)
    assert "no space left" in failure.error
    bench.links[0].said.clear()
    await bench.running(6)
    await bench.close()


@pytest.mark.slow
async def test_the_memory_of_a_dropped_generation_comes_back(tmp_path):
    """The generation's objects refer to each other in cycles, and start-up objects are frozen for the collector."""
    seen = []

    def make():
        operator = Totals()
        seen.append(weakref.ref(operator))
        return operator

    bench = Bench(tmp_path, make_operator=make, trim_memory=Heap().trim)
    bench.operators = NoMemory()
    for token in (5, 6, 7):
        await bench.running(token)
        bench.tell(Trigger(token, token, 0, 3_600_000))  # a timer for an hour
        await bench.acks(token, token)
        await bench.until(lambda: all(closed.done() for closed in bench.slots[0]._closing))
    assert len(seen) == 3
    assert seen[0]() is None
    await bench.close()


async def test_a_dropped_generation_is_collected_while_another_slot_is_awaited(tmp_path):
    """| a generation is dropped … | collected, with all that is frozen    |
    |---|---|
    | and closed before Deploy  | then: nothing is left for the restore  |
    | by Deploy itself          | when the next one has restored         |
    | with the job              | never: the process leaves              |
    """
    trimmed = []
    bench = Bench(tmp_path, trim_memory=trimmed.append)

    async def trims(*expected):
        """The slot answers first, so the test may hear of a restore a turn of the loop before memory is collected."""
        await bench.until(lambda: len(trimmed) >= len(expected))
        assert trimmed == list(expected)

    await bench.running(5)
    await trims(False)
    bench.tell(CancelGeneration(6, 0))
    await trims(False, True)
    assert all(closed.done() for closed in bench.slots[0]._closing)
    await bench.running(6)
    await trims(False, True, False)
    await bench.running(7)
    await trims(False, True, False, True)
    bench.tell(Shutdown("finished", ""))
    await bench.until(lambda: all(closed.done() for closed in bench.slots[0]._closing))
    await bench.close()
    assert trimmed == [False, True, False, True]


class NoMemory:
    def append(self, operator):
        pass


# ---------------------------------------------------------------- lost connections


async def test_after_a_reconnection_everything_unresolved_is_said_again(tmp_path):
    """C2"""
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.links[0].up = False
    bench.tell(Trigger(5, 1, 0))
    bench.feed.end()
    await bench.until(lambda: len(bench.slots[0]._ended) == 2 and len(bench.slots[0]._unresolved) == 2)
    said = [m for m in bench.reconnect() if not isinstance(m, Heartbeat)]
    assert [type(m) for m in said] == [Ack, Ack, SubtaskEnded, SubtaskEnded]
    register = bench.links[0].got(Register)[-1]
    assert (register.token, register.phase, register.highest_checkpoint) == (5, "running", 1)
    assert len(register.ended) == 2
    bench.tell(CheckpointComplete(5, 1))
    assert [type(m) for m in bench.reconnect() if not isinstance(m, Heartbeat)] == [SubtaskEnded, SubtaskEnded]
    await bench.close()


async def test_a_completion_that_was_lost_is_made_good_by_the_answer_to_the_registration(tmp_path):
    """F4"""
    bench = Bench(tmp_path, make_operator=sink_operator)
    bench.feed.rows[0] += [1, 2]
    await bench.running(5)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 2)
    bench.tell(Trigger(5, 1, 0))
    await bench.acks(1, 5)
    assert bench.visible() == []
    said = bench.reconnect(last_completed=1)
    assert not any(isinstance(message, Ack) for message in said)
    await bench.until(lambda: bench.visible() == [1, 2])
    await bench.until(lambda: bench.links[0].got(Committed))
    assert bench.links[0].got(Committed)[-1].checkpoint == 1
    await bench.close()


async def test_an_acknowledgement_of_a_dropped_generation_is_never_said_again(tmp_path):
    """I8, Z10"""
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.tell(Trigger(5, 1, 0))
    await bench.acks(1, 5)
    await bench.running(6)
    assert [m for m in bench.reconnect() if not isinstance(m, Heartbeat)] == []
    await bench.close()


async def test_a_barrier_that_came_through_the_channels_alone_is_known_at_the_registration(tmp_path):
    """F10: the only process that received the trigger may be dead, and the id must not be used again."""
    bench = Bench(tmp_path, parallelism=2)
    await bench.running(5)
    bench.slots[0].handle(Trigger(5, 7, 0))
    aligning = bench.slots[1]._execution.subtasks[1]
    await bench.until(lambda: any(channel.blocked for channel in aligning.inputs))
    bench.reconnect(1)
    assert bench.links[1].got(Register)[-1].highest_checkpoint == 7
    await bench.close()


# ---------------------------------------------------------------- failures


class Failing(Totals):
    """Operator that raises at a place chosen by the test."""

    at = ""

    def open(self, context):
        super().open(context)
        self.call_later = context.call_later
        if self.at == "executor":
            context.executor.submit(lambda: None, lambda result, error: self.fail())

    def fail(self):
        raise ProtocolViolation(f"broken in a {self.at}")

    def process(self, batch, emit, port=0):
        if self.at == "row":
            self.fail()
        if self.at == "timer":
            self.call_later(0.001, self.fail)

    def on_complete(self, checkpoint):
        if self.at == "order":
            self.fail()


@pytest.mark.parametrize("at", ["row", "order", "timer", "executor"])
async def test_whatever_an_operator_raises_wherever_it_is_called_fails_the_generation(tmp_path, at):
    """An error that only reaches a log would leave the job waiting forever."""

    class FailingThere(Failing):
        pass

    FailingThere.at = at
    bench = Bench(tmp_path, make_operator=FailingThere)
    bench.feed.rows[0] += [1]
    bench.deploy(5)
    while not bench.links[0].got(Restored) and not bench.links[0].got(SubtaskFailed):
        await asyncio.sleep(0.001)
    bench.tell(Start(5), Trigger(5, 1, 0))
    bench.tell(CheckpointComplete(5, 1))
    failure = await bench.failure()
    assert f"broken in a {at}" in failure.error
    assert not failure.retryable
    await bench.close()


class OnAFullDisk(Totals):
    """Operator whose keyed state cannot be written."""

    def open(self, context):
        super().open(context)
        self.backend = context.open_keyed()
        self.table = self.backend.table("count", lambda v: v, lambda v: v, 1)
        self.backend._shard.kv.write = self._no_space

    def _no_space(self, entries):
        raise OSError("No space left on device")

    def process(self, batch, emit, port=0):
        for n in batch.rows.column(0).to_pylist():
            self.table.put((n,), b"x")

    def snapshot(self, checkpoint):
        self.backend.snapshots.freeze(checkpoint)
        return super().snapshot(checkpoint).__class__(keyed=self.backend.snapshots)


async def test_a_full_disk_while_frozen_state_is_drained_fails_the_generation(tmp_path):
    """O7: only the slot knows of the error; continued heartbeats would hide it."""
    bench = Bench(tmp_path, make_operator=OnAFullDisk)
    bench.feed.rows[0] += [1, 2, 3]
    await bench.running(5)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 3)
    bench.tell(Trigger(5, 1, 0))
    failure = await bench.failure()
    assert failure.retryable
    assert "No space left" in failure.error
    await bench.close()


async def test_an_order_that_meets_a_bug_fails_the_generation(tmp_path):
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.slots[0]._execution.trigger = None
    bench.tell(Trigger(5, 1, 0))
    failure = await bench.failure()
    assert failure.token == 5
    await bench.close()


async def test_the_cause_of_a_failure_is_said_before_the_peers_can_see_its_effect(tmp_path):
    """Otherwise peers report a broken connection first, and a restart hides the user's error."""
    order = []

    class Watched(LocalDataPlane):
        def disconnect(self):
            order.append("disconnected")

    class Broken(Totals):
        def process(self, batch, emit, port=0):
            raise ProtocolViolation("the cause")

    bench = Bench(tmp_path, make_operator=Broken, plane=Watched)
    bench.feed.rows[0] += [1]
    send = bench.links[0].send

    def noted(message):
        if isinstance(message, SubtaskFailed):
            order.append("said")
        send(message)

    bench.links[0].send = noted
    await bench.running(5)
    await bench.failure()
    await bench.close()
    assert order[0] == "said"


# ---------------------------------------------------------------- sinks across generations


async def test_commit_running_in_a_dropped_generation_meets_its_repetition_in_the_next(tmp_path):
    """T3, T10, Z11: decided rows become visible once, whichever commit is first."""
    bench = Bench(tmp_path, make_operator=sink_operator)
    publish, entered, go_on = bench.output.publish, threading.Event(), threading.Event()

    def held(*arguments, **named):
        if not entered.is_set():
            entered.set()
            assert go_on.wait(60)
        publish(*arguments, **named)

    bench.output.publish = held
    bench.feed.rows[0] += [1, 2]
    await bench.running(5)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 2)
    restored = await bench.checkpoint(1, 5)
    await bench.until(entered.is_set)
    bench.tell(CancelGeneration(6, 1))
    bench.feed.rows[0] += [3]
    await bench.running(6, 1, restored)
    await bench.until(lambda: bench.visible() == [1, 2])
    go_on.set()
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 1)
    await bench.checkpoint(2, 6)
    await bench.until(lambda: bench.visible() == [1, 2, 3])
    await bench.close()
    assert [key for key in stored(bench) if key.startswith("_staging")] == []


@pytest.mark.parametrize("what", ["publish", pytest.param("put_if_absent", marks=pytest.mark.slow)])
async def test_endless_commit_keeps_only_its_sink_of_the_dropped_generation_in_memory(tmp_path, what):
    """Z11: also for the global committer; the state and channels of the dropped generation are freed."""
    dropped = []

    def make():
        operator = sink_operator()
        dropped.append(weakref.ref(operator))
        return operator

    bench = Bench(tmp_path, make_operator=make)
    bench.operators = NoMemory()
    real, entered, go_on = getattr(bench.output, what), threading.Event(), threading.Event()

    def held(*arguments, **named):
        if not entered.is_set():
            entered.set()
            assert go_on.wait(3_600)
        return real(*arguments, **named)

    setattr(bench.output, what, held)
    bench.feed.rows[0] += [1, 2]
    await bench.running(5)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 2)
    dropped.extend(map(weakref.ref, [bench.slots[0]._execution, *bench.slots[0]._execution.subtasks]))
    restored = await bench.checkpoint(1, 5)
    if what == "put_if_absent":
        own = tuple(each for each in restored if each.operator == "target")
        bench.tell(CommitGlobally(5, 1, "target", own))
    await bench.until(entered.is_set)
    bench.tell(CancelGeneration(6, 1))

    def gone():
        gc.collect()
        return all(each() is None for each in dropped)

    try:
        await asyncio.wait_for(bench.until(gone), 60)
        assert not any(closed.done() for closed in bench.slots[0]._closing)
    finally:
        go_on.set()
    await bench.until(lambda: all(closed.done() for closed in bench.slots[0]._closing))
    await bench.close()


async def test_what_an_operator_was_restored_from_is_let_go_of_once_it_is_open(tmp_path):
    """A value may have many MB, and the operator's state is a second copy."""
    bench = Bench(tmp_path)
    await bench.running(5)
    restored = await bench.checkpoint(1, 5)
    bench.tell(CancelGeneration(6, 1))
    await bench.running(6, 1, restored)
    opened = bench.operators[-1]
    assert opened.life == ["opened"]
    assert opened.context.restored == ()
    execution = bench.slots[0]._execution
    assert (execution._deploy.operators, execution._chains._restored) == ((), ())
    with pytest.raises(ProtocolViolation, match="opened once"):
        opened.context.open_keyed()
    await bench.close()


async def test_rows_of_an_aborted_checkpoint_ride_with_the_next_one(tmp_path):
    """T15"""
    bench = Bench(tmp_path, make_operator=sink_operator)
    bench.feed.rows[0] += [1]
    await bench.running(5)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 1)
    bench.tell(Trigger(5, 1, 0))
    await bench.acks(1, 5)
    bench.tell(AbortCheckpoint(5, 1, "expired"))
    bench.feed.rows[0] += [2]
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 2)
    await bench.checkpoint(2, 5)
    await bench.until(lambda: bench.visible() == [1, 2])
    await bench.close()


async def test_a_generation_that_starts_over_from_before_a_checkpoint_shows_its_rows_once(tmp_path):
    """T15: undecided staged rows of the older generation are cleaned up."""
    bench = Bench(tmp_path, make_operator=sink_operator)
    bench.feed.rows[0] += [1, 2]
    await bench.running(5)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 2)
    bench.tell(Trigger(5, 1, 0))
    await bench.acks(1, 5)
    await bench.running(6)
    await bench.until(lambda: bench.slots[0]._execution.subtasks[1].rows_in == 2)
    await bench.checkpoint(2, 6)
    await bench.until(lambda: bench.visible() == [1, 2])
    await bench.close()
    assert [key for key in stored(bench) if key.startswith("_staging")] == []


# ---------------------------------------------------------------- leaving


async def test_shutdown_lets_go_of_everything_and_says_how_the_job_ended(tmp_path):
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.tell(Shutdown("finished", "all read"))
    assert (await bench.slots[0].left).outcome == "finished"
    await bench.slots[0].closed()
    assert bench.operators[0].life == ["opened", "closed"]
    bench.tell(Start(5), Trigger(5, 1, 0), CheckpointComplete(5, 1))
    await bench.close()


# ---------------------------------------------------------------- unaligned checkpoints


class Held(Totals):
    """Operator whose snapshot ends on the test's command; on an abort, records whether the snapshot is still wanted."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()
        self.called_off = []

    def snapshot(self, checkpoint):
        values = super().snapshot(checkpoint).values
        return Capture(values=values, blocking=lambda: {"held": b"%d" % self.let_go.wait(60)})

    def on_abort(self, checkpoint):
        super().on_abort(checkpoint)
        self.called_off += [run.cancelled for run in self.runs() if run.barrier.id == checkpoint]


async def test_operators_hear_of_an_abort_before_the_rest_of_the_snapshot_is_called_off(tmp_path):
    """U4, U3: the aborted checkpoint is not acknowledged later."""
    bench = Bench(tmp_path, make_operator=Held)
    await bench.running(5)
    (operator,) = bench.operators
    checkpointing = bench.slots[0]._execution._checkpointing
    operator.runs = lambda: [run for run in checkpointing.runs if run.subtask == SubtaskId(TARGET, 0)]
    bench.tell(Trigger(5, 1, 0, 0))
    await bench.until(operator.runs)
    bench.tell(AbortCheckpoint(5, 1, "expired"))
    assert operator.life == ["opened", "abort 1"]
    assert operator.called_off == [False]
    operator.let_go.set()
    bench.tell(Trigger(5, 2, 0, 0))
    await bench.acks(2, 5)
    assert [ack for ack in bench.links[0].got(Ack) if ack.subtask.chain == TARGET and ack.checkpoint == 1] == []
    await bench.close()


@pytest.mark.parametrize("aligned_timeout_ms", [0, 50])
async def test_rows_in_flight_are_acknowledged_with_the_snapshot_and_come_first_restored(tmp_path, aligned_timeout_ms):
    """U1, U3: between three slots, over two generations; then nothing is left in flight."""
    bench = Bench(tmp_path, parallelism=3)
    await bench.running(5)
    targets = [slot._execution.subtasks[1] for slot in bench.slots]
    for target in targets:
        target.inputs[0].blocked = True  # the rows of slot 0 stay in the channel
    for rows in bench.feed.rows:
        rows += range(9)
    await bench.until(lambda: sum(each.total for each in bench.operators) == 18)
    await bench.until(lambda: sum(len(target.inputs[0]._elements) for target in targets) == 9)
    bench.tell(Trigger(5, 1, 0, aligned_timeout_ms))
    snapshots = [snapshot for ack in await bench.acks(1, 5) for snapshot in ack.operators]
    assert sum(int(each.values["total"]) for each in snapshots if "total" in each.values) == 18
    assert sum(len(each.in_flight) for each in snapshots) == 3
    await bench.running(6, 1, snapshots)
    await bench.until(lambda: sum(each.total for each in bench.operators[3:]) == 27)
    again = await bench.checkpoint(2, 6)
    assert sum(len(each.in_flight) for each in again) == 0
    await bench.close()


# ---------------------------------------------------------------- splits that wait for slower ones


async def test_a_slot_reads_no_further_ahead_than_it_was_told_and_tells_how_far_it_is(tmp_path):
    bench = Bench(tmp_path, max_drift_ms=10, event_time="n")
    bench.feed.rows[0] += [100, 105, 111, 200]
    await bench.running(5)
    link, told = bench.links[0], lambda: [each.sources for each in bench.links[0].got(EventTimeReached)]
    await bench.until(lambda: {"numbers": HeldBack("0", 99)} in told())
    assert told()[0] == {"numbers": HeldBack("0", None)}, "before its first row"
    bench.tell(LowestEventTime(4, 500), LowestEventTime(5, 98))  # the first message is of an older generation
    await bench.until(lambda: {"numbers": HeldBack("0", 110)} in told())
    assert bench.operators[0].total == 3
    link.said.clear()
    bench.tell(Registered(5, 0, 0))  # a new coordinator may have no event times
    await bench.until(lambda: told() == [{"numbers": HeldBack("0", 110)}])
    bench.feed.end()
    bench.tell(LowestEventTime(5, 2**63 - 1))
    await bench.until(lambda: link.got(SubtaskEnded))
    assert bench.operators[0].total == 4
    await bench.until(lambda: told()[-1] == {})
    await bench.close()


async def test_the_figures_say_how_many_splits_wait(tmp_path):
    bench = Bench(tmp_path, splits=3, max_drift_ms=10, event_time="n")
    bench.feed.rows[0] += [1, 2]
    bench.feed.rows[1] += [1, 2]
    await bench.running(5)
    await bench.until(lambda: bench.operators[0].total == 2)
    bench.tell(Trigger(5, 1, 0, stop=True))
    await bench.acks(1, 5)
    assert bench.links[0].got(Heartbeat)[-1].metrics["waiting_splits"] == 2
    await bench.close()
