"""Garbage collection in a slot's process. Each test runs in a separate process, whose heap the test may freeze.

| the heap …                  | a generation has restored | it was dropped                      |
|---|---|---|
| imports, few objects beside | collected                 | collected: circles of it are gone   |
| very many objects beside    | collected, then frozen    | unfrozen once, collected            |
"""

import subprocess
import sys

import pytest

_BEFORE = """
import gc, weakref
from barrier_runtime.runtime.host.process import _MANY, Heap
class Circle:
    def __init__(self, beside=0):
        self.itself, self.beside = self, [[] for _ in range(beside)]
process = Heap()
process.begin()
imports = gc.get_freeze_count()
gc.disable()
"""


def said_by(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE + script], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_imports_are_frozen_and_a_dropped_generation_is_collected_without_them() -> None:
    said = said_by("""
generation = Circle()
seen = weakref.ref(generation)
process.trim(False)
frozen = gc.get_freeze_count()
del generation
process.trim(True)
print(imports > 1_000, frozen == imports == gc.get_freeze_count(), seen() is None)
""")
    assert said == "True True True"


@pytest.mark.slow
def test_very_large_generation_is_frozen_and_still_collected_when_dropped() -> None:
    said = said_by("""
generation = Circle(beside=2 * _MANY)
seen = weakref.ref(generation)
process.trim(False)
frozen = gc.get_freeze_count()
del generation
process.trim(True)
print(frozen > imports + _MANY, seen() is None)
""")
    assert said == "True True"


@pytest.mark.slow
def test_objects_frozen_by_an_earlier_slot_are_collected_before_the_next_begins() -> None:
    said = said_by("""
generation = Circle(beside=2 * _MANY)
seen = weakref.ref(generation)
process.trim(False)
del generation
process.begin()
print(seen() is None, len(gc.get_objects()) < 1_000)
""")
    assert said == "True True"


def test_tuple_filled_by_another_thread_during_a_count_is_filled_to_its_end() -> None:
    """A list of all objects refers to the tuple, and CPython grows a tuple only if nothing else refers to the tuple."""
    said = said_by("""
import sys, threading
sys.setswitchinterval(1e-5)
done, failed, filled = threading.Event(), [], 0
def fill():
    global filled
    while not done.is_set():
        try:
            filled += len(tuple(at for at in range(200))) == 200
        except SystemError as error:
            failed.append(error)
thread = threading.Thread(target=fill)
thread.start()
for _ in range(2_000):
    process.trim(False)
while not filled:
    pass
done.set()
thread.join()
print(failed[:1])
""")
    assert said == "[]"
