"""The engines of `real-time` under the same schedule of kills: SIGKILL of the whole program, then a new start.

A feeder sends records at a steady rate all the time. Afterwards the keys of the input topic are compared with the keys
of the output topic, as a `read_committed` reader sees the topics: rows lost, rows doubled. Only workloads with a row
out per row in have such an answer (`rtm-a`, `rtm-c`).
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.broker import PARTITIONS, LoadedKafka
from benchmarks.real_time import SHORTEST_BATCH
from benchmarks.runner import Engine, EngineFailed, Feeder, prepared, watching
from benchmarks.spec import KillCount, RunSpec
from benchmarks.stamps import Stamps
from benchmarks.visible import Watcher

_START_S = 180.0
_DRAINED_S = 30.0  # without a new visible row
_MOST_DRAINING_S = 120.0
_READ_S = 240.0
_LOOK_S = 0.05


def counted_kills(spec: RunSpec, kafka: LoadedKafka, kills: int, pause_s: float) -> KillCount:
    """Never raises for a failure of the engine; the result then has `error`."""
    spec = msgspec.structs.replace(prepared(spec, kafka), real_time_batch=SHORTEST_BATCH)
    killed_ns: list[int] = []
    engine = Engine(spec, {})
    error = None
    watcher = watching(spec)
    try:
        with watcher:
            with Feeder(spec):
                _wait_for_more(watcher, 0, engine)
                for _ in range(kills):
                    time.sleep(pause_s)
                    engine.kill()
                    killed_ns.append(time.time_ns())
                    engine = Engine(spec, {})
                    engine.wait_for("running", _START_S)
                    _wait_for_more(watcher, watcher.rows, engine)
                time.sleep(pause_s)
            _wait_until_drained(watcher)
            engine.stop()
    except EngineFailed as failure:
        error = str(failure)
    finally:
        engine.kill()
    common = {
        "engine": spec.engine,
        "workload": spec.workload,
        "guarantee": spec.guarantee,
        "rate": spec.rate,
        "kills": len(killed_ns),
    }
    fed = _keys(spec, spec.topic_in)
    if error is not None:
        return KillCount(fed=len(fed), error=error, **common)  # type: ignore[arg-type]
    lost, doubled = lost_and_doubled(fed, _keys(spec, spec.topic_out))
    return KillCount(
        fed=len(fed),
        lost=lost,
        doubled=doubled,
        gaps_ms=gaps_after(watcher.stamps(), killed_ns),
        **common,  # type: ignore[arg-type]
    )


def lost_and_doubled(fed: Iterable[bytes], out: Iterable[bytes]) -> tuple[int, int]:
    """(Keys of `fed` that are missing in `out`, additional rows in `out`)."""
    wanted, seen = Counter(fed), Counter(out)
    return (wanted - seen).total(), (seen - wanted).total()


def gaps_after(stamps: Stamps, killed_ns: Sequence[int]) -> list[float]:
    """Milliseconds from each kill until a row that was due after the kill is visible."""
    gaps = []
    for at_ns in killed_ns:
        arrived = stamps.arrived[stamps.intended >= at_ns]
        if len(arrived):
            gaps.append(round((int(arrived.min()) - at_ns) / 1e6, 1))
    return gaps


def _wait_for_more(watcher: Watcher, than: int, engine: Engine) -> None:
    deadline = time.monotonic() + _START_S
    while watcher.rows <= than:
        if "end" in engine.said:
            raise EngineFailed(f"ended by itself: {engine.last_words()}")
        if time.monotonic() > deadline:
            raise EngineFailed(f"no output within {_START_S:.0f} s: {engine.last_words()}")
        time.sleep(_LOOK_S)


def _wait_until_drained(watcher: Watcher) -> None:
    deadline = time.monotonic() + _MOST_DRAINING_S
    rows, changed = watcher.rows, time.monotonic()
    while time.monotonic() < min(deadline, changed + _DRAINED_S):
        time.sleep(_LOOK_S)
        if watcher.rows != rows:
            rows, changed = watcher.rows, time.monotonic()


def _keys(spec: RunSpec, topic: str) -> list[bytes]:
    """Keys of all committed records of the topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": spec.bootstrap,
            "group.id": "bench-keys",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    with contextlib.closing(consumer):
        parts = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = {part.partition: consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts}
        consumer.assign(parts)
        keys: list[bytes] = []
        deadline = time.monotonic() + _READ_S
        while any(part.offset < ends[part.partition] for part in consumer.position(parts)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic} could not be read to its end within {_READ_S:.0f} s")
            keys.extend(message.key() for message in consumer.consume(10_000, timeout=0.2) if message.error() is None)
    return keys
