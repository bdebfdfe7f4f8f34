"""Setting the wall clock while sources read causes no silence, no burst and no stalled watermark."""

import msgspec
import pyarrow as pa
import pytest
from slot_bench import Bench, Totals

from barrier_runtime.connectors.memory.rate import GeneratedRows
from barrier_runtime.runtime.host.clock import LoopTimer
from tests.polled_rows import polled_rows

HOUR_S = 3600


class HandClocks:
    """Clocks that advance on the test's command; the wall clock can be set."""

    timer = LoopTimer

    def __init__(self):
        self.steady_s = 50.0
        self.wall_ahead_s = 1_000_000.0

    def monotonic_s(self):
        return self.steady_s

    def wall_ns(self):
        return int((self.steady_s + self.wall_ahead_s) * 1e9)


class Watching(Totals):
    """Keeps the sizes of batches, their latencies and watermarks."""

    def open(self, context):
        super().open(context)
        self.batches, self.emitted_ns, self.watermarks = [], [], []

    def process(self, batch, emit, port=0):
        super().process(batch, emit, port)
        self.batches.append(batch.rows.num_rows)
        self.emitted_ns.append(batch.emit_ns)

    def on_watermark(self, watermark_ms, emit):
        self.watermarks.append(watermark_ms)


async def pass_until(bench, clock, condition, step_s=0.01):
    """Advances time in steps, after the slot's turns, until `condition` holds."""

    def stepped():
        if not condition():
            clock.steady_s += step_s
        return condition()

    await bench.until(stepped)


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
async def test_a_rate_goes_on_as_before_when_the_wall_clock_is_set(tmp_path, jump_s):
    clock = HandClocks()
    bench = Bench(tmp_path, make_operator=Watching, feed=GeneratedRows("numbers", 1_000, None, None, None), clock=clock)
    await bench.running(5)
    (target,) = bench.operators
    await pass_until(bench, clock, lambda: target.total >= 50)
    clock.wall_ahead_s += jump_s
    before_s, before, known = clock.steady_s, target.total, len(target.batches)
    await pass_until(bench, clock, lambda: target.total >= before + 200)
    passed_s = clock.steady_s - before_s
    assert target.total - before <= passed_s * 1_000 + 20
    assert max(abs(clock.wall_ns() - ns) for ns in target.emitted_ns[known:]) < passed_s * 1e9 + 1e8
    await bench.close()


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
async def test_silent_split_becomes_idle_and_the_watermark_advances_over_clock_changes(tmp_path, jump_s):
    clock = HandClocks()
    bench = Bench(tmp_path, make_operator=Watching, splits=2, clock=clock, event_time="n", idle_timeout_ms=100)
    bench.feed.rows[0] += [1_000]
    await bench.running(5)
    (target,) = bench.operators
    await pass_until(bench, clock, lambda: target.total == 1, 0.001)
    assert target.watermarks == []
    clock.wall_ahead_s += jump_s
    before_s = clock.steady_s
    for n in range(2_000, 1_000_000):
        bench.feed.rows[0].append(n)
        await pass_until(bench, clock, lambda: target.total == len(bench.feed.rows[0]), 0.001)
        if target.watermarks:
            break
        assert clock.steady_s - before_s < 5
    await bench.close()


def test_rate_continues_with_the_same_rows_after_a_clock_set_back_between_runs():
    source = GeneratedRows("numbers", 1_000, 500, None, None)
    (split,) = source.splits(1)
    first = source.reader(split)
    start_ns = 10**18
    rows = [polled_rows(first.poll(1_000, start_ns)), polled_rows(first.poll(1_000, start_ns + 99_000_000))]
    position = first.position()
    rest = polled_rows(first.poll(1_000, start_ns + 499_000_000))
    again = source.reader(split)
    again.seek(position)
    now_ns = start_ns - HOUR_S * 10**9
    assert again.next_due_ns() is None
    taken = []
    while not again.finished:
        polled = again.poll(1_000, now_ns)
        if polled is not None:
            assert abs(polled.emit_ns - now_ns) <= 1_000_000
            taken.append(polled_rows(polled))
        now_ns += 1_000_000
    assert pa.Table.from_batches(taken) == pa.Table.from_batches([rest])
    assert now_ns - start_ns + HOUR_S * 10**9 <= 402_000_000
    assert msgspec.json.decode(again.position())["start_ns"] == start_ns
    assert sum(batch.num_rows for batch in rows) == 100
