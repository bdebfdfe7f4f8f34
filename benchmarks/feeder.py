"""Feeds a topic with the events, each at the intended time, from a separate process:

    python -m benchmarks.feeder <bootstrap> <topic> <partitions> <rate> <keys> [<input>]

Event i goes to partition i mod partitions and carries the intended emission time. If the feeder or the broker falls
behind, events are late, and the figures show the delay. The feeder stops when standard input ends, and prints the delay
in ms with which events reached the client (99th percentile over the feeder's turns).

The measured processes lose the processor time of the feeder. So messages are made some hundreds at a time before they
are due, and a turn hands the client a list per partition.
"""

import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from benchmarks import events, records

Make = Callable[[events.Ints, events.Ints, int], list[dict[str, bytes]]]  # rows, due times, keys

_TURN_S = 0.001
_MOST = 20_000  # events per turn
_MADE_AHEAD_S = 0.04  # of events; messages of several turns cost as much to make as of a single turn
_TIMEOUT_S = 30
_CONFIG = {
    "linger.ms": 1,  # a request per event would be most of the broker's work
    "max.in.flight": 5,  # a slow broker must not get thousands of requests of an event each
    "acks": "1",
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
}


def main() -> int:
    from confluent_kafka import Producer

    bootstrap, topic = sys.argv[1:3]
    partitions, rate, keys = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    make = records.as_records if sys.argv[6:] == ["records"] else _json
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    producer = Producer({"bootstrap.servers": bootstrap, **_CONFIG})
    producer.list_topics(topic, timeout=_TIMEOUT_S)  # starts the schedule only when the broker is reached
    began_ns, row = time.time_ns(), 0
    made: list[dict[str, bytes]] = []  # messages of the rows from `first_made` on
    first_made = 0
    late_ns: list[int] = []
    while not stop.is_set():
        now_ns = time.time_ns()
        due = min(int((now_ns - began_ns) * rate / 1e9) + 1, row + _MOST)
        if due > row:
            late_ns.append(now_ns - began_ns - int(row * (1e9 / rate)))
            if due > first_made + len(made):
                first_made, made = row, _messages(row, due + int(rate * _MADE_AHEAD_S), began_ns, rate, keys, make)
            for begin in range(row, min(due, row + partitions)):
                messages = made[begin - first_made : due - first_made : partitions]
                producer.produce_batch(topic, messages, partition=begin % partitions)
            row = due
        producer.poll(0)
        ahead_s = (began_ns + row * 1e9 / rate - time.time_ns()) / 1e9
        if ahead_s > 0:
            time.sleep(min(ahead_s, _TURN_S) if rate >= 1 / _TURN_S else ahead_s)
    producer.flush(30)
    print(f"{np.percentile(late_ns, 99) / 1e6:.1f}", flush=True)
    return 0


def _messages(begin: int, end: int, began_ns: int, rate: float, keys: int, make: Make) -> list[dict[str, bytes]]:
    numbers = np.arange(begin, end)
    emitted_ns = began_ns + (numbers * (1e9 / rate)).astype(np.int64)
    return make(numbers, emitted_ns, keys)


def _json(numbers: events.Ints, emitted_ns: events.Ints, keys: int) -> list[dict[str, bytes]]:
    return [{"value": value} for value in events.as_json(events.events(numbers, emitted_ns, keys))]


if __name__ == "__main__":
    sys.exit(main())
