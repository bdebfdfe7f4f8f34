"""Tests of the simulated machinery: loops, crashes, stalls, connections, blocking jobs, store, determinism.

Results of the simulation rest on this machinery: each fault has to happen, and only when requested.
"""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Barrier, EndOfInput
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.backend.keyed_backend import open_keyed_backend
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectNotFound, PutOutcome
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.testing.simulation.connection import WINDOW
from barrier_runtime.testing.simulation.loop import OutOfSteps, SimProcess, Simulation
from barrier_runtime.testing.simulation.lsm_kv import install as install_lsm
from barrier_runtime.testing.simulation.store import SimStore, StoreFaults


class Two:
    """Two processes; a server on the second records the data and the end of connections."""

    def __init__(self, seed: int = 1) -> None:
        self.sim = Simulation(seed)
        self.sim.network.faults.late = 0.0
        self.client = SimProcess(self.sim, "client")
        self.server = SimProcess(self.sim, "server")
        self.accepted: list[Recorder] = []
        self.server.spawn(self.server.loop.create_server(self._accept, "server", 7))
        self.sim.run_for(0.001)

    def _accept(self) -> "Recorder":
        self.accepted.append(Recorder())
        return self.accepted[-1]

    def connected(self) -> "Recorder":
        client = Recorder()
        connecting = self.client.spawn(self.client.loop.create_connection(lambda: client, "server", 7))
        assert self.sim.run_until(lambda: connecting.done() and bool(self.accepted), 5)
        assert self.sim.run_until(lambda: self.accepted[-1].made, 5)
        return client

    def __enter__(self) -> "Two":
        self.sim.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.sim.problems == []
        self.sim.__exit__()


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.made = False
        self.data = b""
        self.chunks = 0
        self.eof = False
        self.lost = False
        self.error: Exception | None = None
        self.paused = 0
        self.resumed = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.made = True

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.chunks += 1

    def eof_received(self) -> None:
        self.eof = True

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.error = error

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1


# ---------------------------------------------------------------- loops and processes


def test_a_loop_runs_callbacks_in_order_and_timers_at_their_time() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        seen: list[Any] = []
        process.loop.call_later(0.5, lambda: seen.append(("late", sim.now_s)))
        process.loop.call_later(0.25, seen.append, "early")
        process.loop.call_later(0.1, seen.append, "never").cancel()
        process.loop.call_soon(seen.append, "soon")
        process.loop.call_soon(seen.append, "sooner or later")
        sim.run_for(1)
        assert seen[:3] == ["soon", "sooner or later", "early"]
        assert seen[3][0] == "late"
        assert 0.5 <= seen[3][1] < 0.501


def test_asyncio_itself_runs_on_it_unchanged() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")

        async def child(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        async def main() -> Any:
            assert asyncio.get_running_loop() is process.loop
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(child(50), 1)
            done, _ = await asyncio.wait([asyncio.ensure_future(child(0.1)), asyncio.ensure_future(child(0.2))])
            lock = asyncio.Lock()
            async with lock:
                thread = await asyncio.to_thread(sum, [1, 2, 3])
            return len(done), await asyncio.gather(child(0.1), child(0.3)), thread, sim.now_s

        task = process.spawn(main())
        assert sim.run_until(task.done, 10)
        done, gathered, thread, now = task.result()
        assert (done, gathered, thread) == (2, [0.1, 0.3], 6)
        assert 1.5 <= now < 1.51
        assert sim.problems == []


def test_what_nobody_waited_for_is_a_problem() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")

        async def fails() -> None:
            raise ValueError("lost")

        process.spawn(fails())
        process.loop.call_soon(lambda: 1 / 0)
        sim.run_for(0.1)
        assert sorted(type(problem.error).__name__ for problem in sim.problems) == ["ValueError", "ZeroDivisionError"]


def test_a_loop_that_goes_round_and_round_is_stopped_and_named() -> None:
    with Simulation(7, max_steps=500) as sim:
        process = SimProcess(sim, "p")

        def again() -> None:
            process.loop.call_soon(again)

        again()
        with pytest.raises(OutOfSteps, match="seed 7"):
            sim.run_for(60)


def test_a_crashed_process_never_runs_again_not_even_its_cleanup() -> None:
    seen: list[str] = []
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")

        async def main() -> None:
            try:
                await asyncio.sleep(1)
                seen.append("slept")
            finally:
                seen.append("cleanup")

        process.spawn(main())
        process.loop.call_later(0.5, seen.append, "timer")
        sim.run_for(0.1)
        process.crash()
        process.loop.call_soon(seen.append, "callback")
        sim.run_for(5)
        assert seen == []
        assert not process.alive
    assert seen == ["cleanup"]  # coroutines are unwound at the end, without effects on others


def test_a_stalled_process_catches_up_in_order() -> None:
    with Two() as two:
        client, accepted = two.connected(), two.accepted[0]
        loop = two.server.loop
        seen: list[Any] = []
        two.server.stall(60)
        loop.call_later(1.0, seen.append, 1)
        loop.call_later(2.0, seen.append, 2)
        client.transport.write(b"x" * 10)
        second = Recorder()
        connecting = two.client.spawn(two.client.loop.create_connection(lambda: second, "server", 7))
        two.sim.run_for(30)
        assert connecting.done()  # the kernel accepts for the stalled process
        second.transport.write(b"early")
        two.sim.run_for(29)
        assert (seen, accepted.data, len(two.accepted)) == ([], b"", 1)
        two.sim.run_for(2)
        assert (seen, accepted.data, two.accepted[1].data) == ([1, 2], b"x" * 10, b"early")


def test_a_stall_ends_when_it_is_told_to() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        seen: list[float] = []
        process.stall()
        process.loop.call_soon(lambda: seen.append(sim.now_s))
        sim.run_for(5)
        assert process.stalled
        assert process.alive
        process.resume()
        sim.run_for(1)
        assert len(seen) == 1
        assert 5 <= seen[0] < 5.001


def test_each_process_has_its_own_wall_clock() -> None:
    with Simulation(1) as sim:
        one, other = SimProcess(sim, "one"), SimProcess(sim, "other")
        other.skew_ns = 3_000_000_000
        sim.run_for(2)
        assert other.wall_ns() - one.wall_ns() == 3_000_000_000
        assert one.monotonic_s() == other.monotonic_s() == 2.0


# ---------------------------------------------------------------- network


def test_streams_talk_over_it_and_close_in_order() -> None:
    with Two() as two:
        listening = two.sim.network.listen("echo", 9, place="server")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1000):
                writer.write(data.upper())
                await writer.drain()
            writer.close()

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection("echo", 9)
            answer = b""
            for word in (b"in ", b"the ", b"right ", b"order"):
                writer.write(word)
                answer += await reader.readexactly(len(word))
            writer.close()
            await writer.wait_closed()
            return answer

        two.server.spawn(asyncio.start_server(serve, sock=listening, limit=1000))
        two.sim.run_for(0.01)
        asking = two.client.spawn(ask())
        assert two.sim.run_until(asking.done, 10)
        assert asking.result() == b"IN THE RIGHT ORDER"
        two.sim.run_for(1)
        assert two.sim.network.connections == []


def test_bytes_keep_their_order_however_they_are_split_and_delayed() -> None:
    with Two() as two:
        two.sim.network.faults.late = 0.3
        two.sim.network.faults.split = 0.5
        client = two.connected()
        sent = b""
        for number in range(300):
            chunk = b"%d," % number
            client.transport.write(chunk)
            sent += chunk
            two.sim.run_for(0.001)
        assert two.sim.run_until(lambda: two.accepted[0].data == sent, 20)
        assert 20 < two.accepted[0].chunks != 300


def test_connections_overtake_each_other() -> None:
    with Two() as two:
        two.sim.network.faults.split = 0.0
        ends = [two.connected() for _ in range(4)]
        arrived: list[int] = []
        for index, accepted in enumerate(two.accepted):
            accepted.data_received = lambda data, index=index: arrived.append(index)
        order: set[tuple[int, ...]] = set()
        for _ in range(20):
            arrived.clear()
            for end in ends:
                end.transport.write(b"go")
            two.sim.run_for(0.1)
            order.add(tuple(arrived))
        assert all(sorted(each) == [0, 1, 2, 3] for each in order)
        assert len(order) > 1


def test_who_does_not_read_stops_the_writer() -> None:
    with Two() as two:
        client, accepted = two.connected(), two.accepted[0]
        accepted.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=100_000)
        data = os.urandom(100) * 5_000
        client.transport.write(data)
        two.sim.run_for(5)
        assert (client.paused, client.resumed, accepted.data) == (1, 0, b"")
        assert client.transport.get_write_buffer_size() == len(data) - WINDOW
        accepted.transport.resume_reading()
        assert two.sim.run_until(lambda: len(accepted.data) == len(data), 30)
        assert accepted.data == data
        assert client.resumed == 1
        assert client.transport.get_write_buffer_size() == 0


def test_close_flushes_and_abort_does_not() -> None:
    for way, arrives in (("close", 300_000), ("abort", WINDOW)):
        with Two() as two:
            client, accepted = two.connected(), two.accepted[0]
            client.transport.write(b"x" * 300_000)
            getattr(client.transport, way)()
            two.sim.run_for(10)
            assert (len(accepted.data), accepted.eof, accepted.lost) == (arrives, True, True)
            assert client.lost


def test_a_connect_to_nobody_is_refused() -> None:
    with Two() as two:
        connecting = two.client.spawn(two.client.loop.create_connection(Recorder, "server", 8))
        assert two.sim.run_until(connecting.done, 5)
        assert isinstance(connecting.exception(), ConnectionRefusedError)


def test_a_cut_is_told_to_both_ends_and_what_was_on_the_way_is_gone() -> None:
    with Two() as two:
        client, accepted = two.connected(), two.accepted[0]
        client.transport.write(b"on its way")
        two.sim.network.cut(two.sim.network.connections[0])
        two.sim.run_for(5)
        assert isinstance(client.error, ConnectionResetError)
        assert isinstance(accepted.error, ConnectionResetError)
        assert accepted.data == b""


def test_of_a_half_open_connection_one_end_learns_only_when_it_writes() -> None:
    with Two() as two:
        two.sim.network.faults.never_told = 0.0
        client, accepted = two.connected(), two.accepted[0]
        connection = two.sim.network.connections[0]
        two.sim.network.half_open(connection, connection.ends[1])
        two.sim.run_for(60)
        assert accepted.lost
        assert not client.lost
        client.transport.write(b"anybody there?")
        two.sim.run_for(60)
        assert isinstance(client.error, ConnectionResetError)


def test_or_never_and_then_its_bytes_go_nowhere() -> None:
    with Two() as two:
        two.sim.network.faults.never_told = 1.0
        client, accepted = two.connected(), two.accepted[0]
        connection = two.sim.network.connections[0]
        two.sim.network.half_open(connection, connection.ends[1])
        for _ in range(20):
            client.transport.write(b"x" * 10_000)
            two.sim.run_for(10)
        assert not client.lost
        assert accepted.data == b""
        assert client.paused == 1


def test_clogged_ways_are_freed_one_by_one() -> None:
    with Two() as two:
        client, accepted = two.connected(), two.accepted[0]
        network = two.sim.network
        network.partition([two.client], [two.server])
        client.transport.write(b"there")
        accepted.transport.write(b"back")
        connecting = two.client.spawn(two.client.loop.create_connection(Recorder, "server", 7))
        two.sim.run_for(60)
        assert (client.data, accepted.data, connecting.done()) == (b"", b"", False)
        network.unclog("client", "server")
        two.sim.run_for(5)
        assert (client.data, accepted.data, connecting.done()) == (b"", b"there", False)
        network.heal()
        two.sim.run_for(5)
        assert (client.data, connecting.done(), network.clogged) == (b"back", True, [])


def test_the_peer_of_a_crashed_process_is_told_or_finds_out_when_it_writes() -> None:
    told = silent = 0
    for seed in range(60):
        with Two(seed) as two:
            client = two.connected()
            two.server.crash()
            two.sim.run_for(30)
            if client.lost:
                told += 1
            else:
                silent += 1
                client.transport.write(b"hello?")
                two.sim.run_for(30)
                assert client.lost
    assert told > silent > 0


def test_a_process_that_leaves_sends_what_it_wrote_first() -> None:
    with Two() as two:
        client, accepted = two.connected(), two.accepted[0]
        client.transport.write(b"x" * 200_000)
        two.client.leave()
        two.sim.run_for(5)
        assert (len(accepted.data), accepted.eof) == (200_000, True)


def test_connects_wait_in_the_backlog_of_an_inherited_socket() -> None:
    """An embedded coordinator inherits such sockets from the driver."""
    with Two() as two:
        listening = two.sim.network.listen("driver", 9, place="driver")
        first = SimProcess(two.sim, "first", "driver")
        first.spawn(first.loop.create_server(Recorder, sock=listening))
        two.sim.run_for(0.01)
        first.crash()
        waiting = Recorder()
        connecting = two.client.spawn(two.client.loop.create_connection(lambda: waiting, "driver", 9))
        two.sim.run_for(5)
        assert connecting.done()
        waiting.transport.write(b"hello")
        two.sim.run_for(5)
        second = SimProcess(two.sim, "second", "driver")
        served = Recorder()
        second.spawn(second.loop.create_server(lambda: served, sock=listening))
        two.sim.run_for(5)
        assert served.data == b"hello"


def test_a_protocol_that_raises_loses_its_connection_and_is_a_problem() -> None:
    with Two() as two:
        client, accepted = two.connected(), two.accepted[0]

        def broken(data: bytes) -> None:
            raise ValueError("cannot read this")

        accepted.data_received = broken
        client.transport.write(b"x")
        two.sim.run_for(5)
        assert isinstance(accepted.error, ValueError)
        assert client.lost
        assert [type(problem.error) for problem in two.sim.problems] == [ValueError]
        two.sim.problems.clear()


def test_the_production_data_plane_connects_and_delivers_over_it() -> None:
    with Simulation(3) as sim:
        secret = b"s" * 32
        processes = [SimProcess(sim, f"slot-{index}") for index in range(2)]
        planes = [TcpDataPlane(secret, "job", "run", process.place) for process in processes]
        listening = [process.spawn(plane.listen()) for process, plane in zip(processes, planes, strict=True)]
        sim.run_for(0.01)
        addresses = [task.result() for task in listening]
        channel = ChannelId(7, 0, 0, 1)
        target = InputChannel(0, 0, lambda: None)
        broken: list[str] = []
        planes[1].expect(7, {channel: target}, lambda channel, reason: broken.append(reason))
        peer = Peer(1, "u" * 32, *addresses[1])

        connecting = processes[0].spawn(planes[0].connect(peer, [channel], lambda: None))
        assert sim.run_until(connecting.done, 5)
        [output] = connecting.result()
        output.send(Barrier(1, 7, 0))
        output.send(EndOfInput())
        sim.run_for(1)
        assert [target.pop(), target.pop()] == [Barrier(1, 7, 0), EndOfInput()]
        processes[0].crash()
        sim.run_for(40)
        assert broken == []  # the input had ended before
        assert sim.problems == []


# ---------------------------------------------------------------- blocking jobs


def test_jobs_of_one_process_interleave_and_hand_back_on_its_loop() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        workers = process.workers(2)
        seen: list[Any] = []

        def work(name: str, seconds: float) -> Callable[[], str]:
            def run() -> str:
                seen.append(f"{name} begins")
                process.sleep(seconds)
                seen.append(f"{name} ends")
                return name

            return run

        def done(result: Any, error: BaseException | None) -> None:
            assert asyncio.get_running_loop() is process.loop
            seen.append((result, type(error).__name__))

        workers.submit(work("long", 2), done)
        workers.submit(work("short", 1), done)
        workers.submit(work("queued", 0.1), done)  # waits: there are two threads
        workers.submit(lambda: 1 // 0, done)
        sim.run_for(5)
        ends = [each for each in seen if isinstance(each, tuple)]
        begins = [each for each in seen if isinstance(each, str)]
        assert set(begins[:2]) == {"long begins", "short begins"}
        assert begins[2:5] == ["short ends", "queued begins", "queued ends"]
        assert ends == [
            ("short", "NoneType"),
            ("queued", "NoneType"),
            (None, "ZeroDivisionError"),
            ("long", "NoneType"),
        ]


def test_an_executor_runs_one_piece_at_a_time() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        seen: list[str] = []
        executor = process.workers().executor(lambda error: seen.append(str(error)))
        for name, seconds in (("a", 3), ("b", 1)):
            executor.submit(
                lambda name=name, seconds=seconds: (process.sleep(seconds), seen.append(name)), lambda *_: None
            )
        sim.run_for(2)
        assert executor.busy
        sim.run_for(5)
        assert seen == ["a", "b"]


def test_a_job_waits_in_virtual_time_for_a_file_that_another_one_fetches() -> None:
    """A real event would block both jobs for ever, as they share a thread."""
    file = FileRef("000007.sst", 3, "0" * 64, "key")
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        workers, copies = process.workers(), LocalCopies(process.wait)
        seen: list[str] = []

        def fetch() -> None:
            with copies.fetching(file):
                process.sleep(2)
                seen.append("fetched")

        def restore() -> None:
            process.sleep(1)
            copies.wait_for(file)
            seen.append("restored")

        workers.submit(fetch, lambda *_: None)
        workers.submit(restore, lambda *_: None)
        sim.run_for(5)
        assert seen == ["fetched", "restored"]


def test_blocking_on_the_loop_is_refused() -> None:
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        process.loop.call_soon(process.sleep, 1)
        sim.run_for(1)
        assert "would stop the loop" in str(sim.problems[0].error)


def test_jobs_of_a_crashed_process_never_go_on() -> None:
    seen: list[str] = []
    with Simulation(1) as sim:
        process = SimProcess(sim, "p")

        def run() -> None:
            try:
                process.sleep(1)
                seen.append("went on")
            finally:
                seen.append("unwound")

        process.workers().submit(run, lambda *_: seen.append("done"))
        sim.run_for(0.5)
        process.crash()
        sim.run_for(5)
        assert seen == []
    assert seen == ["unwound"]


def test_jobs_of_a_stalled_process_wait_but_its_request_lands() -> None:
    with Simulation(1) as sim:
        process, other = SimProcess(sim, "p"), SimProcess(sim, "q")
        memory = MemoryStore()
        store = SimStore(sim, process, memory, StoreFaults())
        seen: list[float] = []

        def run() -> None:
            store.put("a/key", b"value")
            seen.append(sim.now_s)

        process.workers().submit(run, lambda *_: None)
        sim.run_for(0.0004)  # the request is under way
        assert process.jobs
        process.stall(60)
        sim.run_for(30)
        assert memory.keys() == ("a/key",)
        assert seen == []
        sim.run_for(31)
        assert seen[0] >= 60
        assert other.alive


def test_an_executor_that_was_shut_down_takes_nothing_and_drops_what_waits() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Simulation(1) as sim:
        process = SimProcess(sim, "p")
        pool = ThreadPoolExecutor(1)
        running = process.loop.run_in_executor(pool, process.sleep, 1)
        waiting = process.loop.run_in_executor(pool, process.sleep, 1)
        sim.run_for(0.5)
        pool.shutdown(wait=False, cancel_futures=True)
        sim.run_for(5)
        assert running.done()
        assert waiting.cancelled()
        with pytest.raises(RuntimeError, match="after shutdown"):
            process.loop.run_in_executor(pool, process.sleep, 1)


# ---------------------------------------------------------------- store


class Storage:
    """One process that calls a store."""

    def __init__(self, seed: int = 1) -> None:
        self.sim = Simulation(seed)
        self.memory = MemoryStore(now_ms=lambda: self.sim.now_us // 1000)
        self.faults = StoreFaults()
        self.process = SimProcess(self.sim, "p")
        self.store = SimStore(self.sim, self.process, self.memory, self.faults)
        self.workers = self.process.workers()

    def call(self, method: str, *args: Any) -> Any:
        """Returns the method's result or exception; `took_s` is the virtual duration."""
        outcome: list[Any] = []
        began = self.sim.now_s

        def work() -> Any:
            result = getattr(self.store, method)(*args)
            return list(result) if method == "list" else result

        self.workers.submit(work, lambda result, error: outcome.append(error or result))
        assert self.sim.run_until(lambda: bool(outcome), 100, look_every_s=0.0005)
        self.took_s = self.sim.now_s - began
        return outcome[0]

    def __enter__(self) -> "Storage":
        self.sim.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.sim.__exit__()


def test_a_healthy_store_keeps_the_contract_and_takes_milliseconds() -> None:
    with Storage() as storage:
        assert storage.call("put", "a", b"1") is None
        assert 0.0005 < storage.took_s < 0.02
        assert storage.call("put_if_absent", "a", b"2") is PutOutcome.EXISTS
        assert storage.call("put_if_absent", "b", b"2") is PutOutcome.CREATED
        assert storage.call("get", "b") == b"2"
        assert [info.key for info in storage.call("list", "")] == ["a", "b"]
        assert storage.call("publish", "b", "c", hashlib.sha256(b"2").hexdigest()) is None
        assert storage.call("delete", ["a", "zz"]) is None
        assert storage.memory.keys() == ("c",)
        assert isinstance(storage.call("get", "a"), ObjectNotFound)
        assert storage.faults.seen == {}


def test_a_call_that_fails_before_has_no_effect() -> None:
    with Storage() as storage:
        storage.faults.fail_before = 1.0
        assert isinstance(storage.call("put", "a", b"1"), Unavailable)
        assert storage.call("put_if_absent", "b", b"1") is PutOutcome.UNKNOWN
        assert isinstance(storage.call("get", "a"), Unavailable)
        assert isinstance(storage.call("list", ""), Unavailable)
        assert storage.memory.keys() == ()
        storage.faults.heal()
        assert storage.call("put", "a", b"1") is None


def test_a_call_whose_answer_is_lost_has_its_effect() -> None:
    with Storage() as storage:
        storage.faults.apply_then_fail = 1.0
        assert isinstance(storage.call("put", "a", b"1"), Unavailable)
        assert storage.call("put_if_absent", "b", b"1") is PutOutcome.UNKNOWN
        assert storage.memory.keys() == ("a", "b")


def test_a_put_may_land_long_after_its_caller_gave_up() -> None:
    late = 0
    for seed in range(10):
        with Storage(seed) as storage:
            storage.faults.land_late = 1.0
            assert storage.call("put_if_absent", "a", b"1") is PutOutcome.UNKNOWN
            late += storage.memory.keys() == ()
            storage.sim.run_for(31)
            assert storage.memory.keys() == ("a",)
    assert late > 0


def test_a_conflict_has_no_effect_and_says_so() -> None:
    with Storage() as storage:
        storage.faults.conflict = 1.0
        assert storage.call("put_if_absent", "a", b"1") is PutOutcome.UNKNOWN
        storage.sim.run_for(60)
        assert storage.memory.keys() == ()


def test_a_slow_answer_comes_all_the_same() -> None:
    with Storage() as storage:
        storage.faults.slow = 1.0
        assert storage.call("put", "a", b"1") is None
        assert 1 < storage.took_s < 31


def test_reads_may_be_short_or_wrong_only_when_told() -> None:
    with Storage() as storage:
        storage.call("put", "a", b"0123456789")
        storage.faults.truncated_read = 1.0
        assert storage.call("get", "a") == b"01234"
        storage.faults.heal()
        storage.faults.flipped_byte = 1.0
        wrong = storage.call("get", "a")
        assert sum(bin(a ^ b).count("1") for a, b in zip(wrong, b"0123456789", strict=True)) == 1
        assert storage.memory.get("a") == b"0123456789"


def test_a_stale_list_lacks_the_new_and_shows_the_deleted() -> None:
    with Storage() as storage:
        storage.faults.stale_list = 1.0
        storage.call("put", "old", b"1")
        storage.sim.run_for(40)
        storage.call("delete", ["old"])
        storage.call("put", "new", b"1")
        storage.faults.stale_s = 30.0
        seen = {tuple(info.key for info in storage.call("list", "")) for _ in range(10)}
        assert ("old",) in seen
        assert ("new",) not in seen
        storage.faults.heal()
        assert [info.key for info in storage.call("list", "")] == ["new"]


def test_a_store_that_ignores_conditions_overwrites() -> None:
    with Storage() as storage:
        storage.faults.ignore_conditions = True
        assert storage.call("put_if_absent", "a", b"1") is PutOutcome.CREATED
        assert storage.call("put_if_absent", "a", b"2") is PutOutcome.CREATED
        assert storage.memory.get("a") == b"2"


def test_in_an_outage_everything_fails_or_hangs_until_it_ends() -> None:
    with Storage() as storage:
        storage.faults.outage_until_s = 60.0
        took = []
        for number in range(8):
            assert isinstance(storage.call("put", f"k{number}", b"1"), Unavailable)
            took.append(storage.took_s)
        assert storage.memory.keys() == ()
        assert min(took) < 0.1
        assert max(took) > 1
        storage.sim.run_for(61)
        assert storage.call("put", "a", b"1") is None


def test_of_a_dead_process_a_request_may_have_got_out_and_nothing_else_does() -> None:
    landed = 0
    for seed in range(40):
        with Storage(seed) as storage:

            def both(storage: Storage = storage) -> None:
                storage.store.put("first", b"1")
                storage.store.put("second", b"1")

            storage.workers.submit(both, lambda *_: None)
            storage.sim.run_until(lambda: bool(storage.process.jobs), 1, look_every_s=0.0001)
            storage.process.crash()
            storage.sim.run_for(10)
            landed += storage.memory.keys() == ("first",)
        assert storage.memory.keys() in ((), ("first",))
    assert 0 < landed < 40


# ---------------------------------------------------------------- keyed state


def test_the_simulated_state_files_behave_as_rocksdbs_under_the_production_backend(tmp_path: Path) -> None:
    """Covers snapshots, reuse of confirmed files, restores from the store, and file numbers reused for other bytes."""
    with Simulation(5) as sim:
        install_lsm(sim)
        memory = MemoryStore()
        paths = Paths("job")

        def opened(name: str, restored: tuple[OperatorSnapshot, ...]) -> Any:
            return open_keyed_backend(
                kind="lsm",
                operator="op",
                subtask=0,
                parallelism=1,
                max_parallelism=4,
                restored=restored,
                store=memory,
                paths=paths,
                token=1,
                slot_uuid="0" * 32,
                directory=tmp_path / name,
                copies=LocalCopies(),
                memory=SlotMemory(8 << 20),
                cache_bytes=1 << 20,
                new_uuid=sim.new_id,
                transfers_at_once=1,
            )

        def put(backend: Any, table: Any, checkpoint: int, entries: dict[int, bytes]) -> OperatorSnapshot:
            for key, value in entries.items():
                table.put((key,), value)
            backend.snapshots.freeze(checkpoint)
            while not backend.snapshots.drain():
                pass
            keyed = backend.snapshots.write(checkpoint)
            backend.snapshots.completed(checkpoint)
            return OperatorSnapshot("op", 0, 1, {}, keyed)

        big = {key: bytes([key]) * 2_000 for key in range(20)}
        first_backend = opened("first", ())
        table = first_backend.table("v", lambda value: value, bytes, 1)
        snapshots = [put(first_backend, table, 1, big)]
        for checkpoint in range(2, 7):
            snapshots.append(put(first_backend, table, checkpoint, {checkpoint: b"changed"}))
        keyed = snapshots[1].keyed
        assert keyed is not None
        assert keyed.new_bytes < keyed.full_bytes  # files of checkpoint 1 are reused
        compacted = [len([f for f in each.keyed.files if f.name.endswith(".sst")]) for each in snapshots if each.keyed]
        assert min(compacted[1:]) < max(compacted)
        first_backend.close()

        restored = opened("second", (snapshots[1],))
        table = restored.table("v", lambda value: value, bytes, 1)
        assert table.get((2,)) == b"changed"
        assert table.get((3,)) == big[3]
        again = [put(restored, table, checkpoint, {checkpoint: b"else"}) for checkpoint in range(7, 12)]
        old = {f.name: f.sha256 for each in snapshots[2:] if each.keyed for f in each.keyed.files}
        new = {f.name: f.sha256 for each in again if each.keyed for f in each.keyed.files}
        reused = [name for name in old.keys() & new.keys() if name.endswith(".sst") and old[name] != new[name]]
        assert reused
        restored.close()


# ---------------------------------------------------------------- determinism


def a_busy_world(seed: int) -> str:
    """Runs a mixture of all faults, and returns the hash of the trace."""
    with Two(seed) as two:
        sim = two.sim
        sim.network.faults.late = 0.05
        memory = MemoryStore()
        faults = StoreFaults(fail_before=0.1, apply_then_fail=0.1, land_late=0.1, slow=0.1, conflict=0.1)
        stores = {process: SimStore(sim, process, memory, faults) for process in (two.client, two.server)}

        async def busy(process: SimProcess) -> None:
            names = {f"key-{number}" for number in range(12)}
            tasks = {process.spawn(asyncio.to_thread(one, process, name)) for name in sorted(names)}
            while tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    sim.trace("outcome", process.name, str(task.result()))
                await asyncio.sleep(0.01)

        def one(process: SimProcess, name: str) -> PutOutcome:
            return stores[process].put_if_absent(name, process.name.encode())

        clients = [two.connected() for _ in range(3)]
        for process in stores:
            process.spawn(busy(process))
        for step in range(40):
            for client in clients:
                client.transport.write(b"x" * (step * 100 + 1))
            if step == 20:
                two.server.stall(1.5)
                sim.network.cut(sim.network.connections[1])
            if step == 30:
                two.client.crash()
            sim.run_for(0.1)
        sim.run_for(60)
        return sim.trace_hash()


def test_the_same_seed_gives_the_same_history_and_another_seed_another_one() -> None:
    assert a_busy_world(1) == a_busy_world(1)
    assert a_busy_world(1) != a_busy_world(2)


def test_neither_hashes_of_strings_nor_addresses_change_the_history() -> None:
    here = Path(__file__).resolve().parent
    code = "import test_infrastructure as t; print(t.a_busy_world(3))"
    hashes = set()
    for value in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": value, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        hashes.add(run.stdout.strip())
    assert hashes == {a_busy_world(3)}


def test_the_last_events_can_be_read() -> None:
    with Simulation(1) as sim:
        sim.trace("first", 1)
        sim.run_for(1.5)
        sim.trace("second", "two", (3, b"4"))
        assert sim.last_events() == "    0.000000  first  1\n    1.500000  second  two (3, b'4')"
