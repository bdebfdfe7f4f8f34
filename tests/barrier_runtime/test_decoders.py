"""Decoders in a fresh process whose threads first use the same type at the same time, like the executors of a restore.

msgspec describes a type at first use and shows the description to other threads before it is complete.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_OURS = """
import importlib, pkgutil, sys, threading, msgspec, barrier_runtime
sys.setswitchinterval(1e-6)
doorways = (".store.s3.aws", ".postgres.session", ".delta.table", ".rabbitmq.broker", ".__main__")
found = {}
for module in pkgutil.walk_packages(barrier_runtime.__path__, "barrier_runtime."):
    if not module.name.endswith(doorways) and ".spark" not in module.name:
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, (msgspec.json.Decoder, msgspec.msgpack.Decoder)):
                found[f"{module.name}.{name}"] = value
assert len(found) > 25, sorted(found)
for name, decoder in found.items():
    data = b"{}" if isinstance(decoder, msgspec.json.Decoder) else b"\\x80"
    barrier = threading.Barrier(4)
    def go():
        barrier.wait()
        try:
            decoder.decode(data)
        except msgspec.MsgspecError:
            pass  # an empty object: what is asked here is whether the process lives on
    threads = [threading.Thread(target=go) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("all", len(found))
"""

_OF_USERS = """
import sys, threading, msgspec
from barrier_runtime import ValueState
sys.setswitchinterval(1e-6)
SOURCE = '''
class C{i}(msgspec.Struct):
    x: int
    y: "list[int]"
class B{i}(msgspec.Struct):
    c: C{i}
    d: "dict[str, C{i}]"
class A{i}(msgspec.Struct):
    b: B{i}
    c: C{i}
    z: "int | None" = None
'''
c = {"x": 1, "y": [1]}
data = msgspec.msgpack.encode({"b": {"c": c, "d": {"k": c}}, "c": c, "z": 3})
read = []
for i in range(1_000):
    exec(SOURCE.format(i=i), globals())
    kind = globals()[f"A{i}"]
    barrier = threading.Barrier(4)
    def go():
        barrier.wait()
        read.append(ValueState(kind).decoder("here")(data).z)
    threads = [threading.Thread(target=go) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
assert read == [3] * 4_000
print("all")
"""


def in_a_fresh_process(code: str) -> bytes:
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:].decode()
    return ended.stdout


@pytest.mark.slow
def test_decoders_of_ours_are_used_for_the_first_time_by_four_threads_at_once() -> None:
    assert in_a_fresh_process(_OURS).startswith(b"all")


@pytest.mark.slow
def test_types_declared_by_several_executors_at_once_are_learnt_only_once() -> None:
    assert in_a_fresh_process(_OF_USERS) == b"all\n"
