"""Waits of a thread for a processor: each thread reads a separate value, also after a fork, and closes the file."""

import gc
import os
import threading

from barrier_runtime.runtime.host.watchdog import starved_s


def _open_files() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)}


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def _waited_ns() -> int:
    with open("/proc/thread-self/schedstat") as told:
        return int(told.read().split()[1])


def test_each_thread_hears_of_itself_and_leaves_no_open_file() -> None:
    starved_s()
    told: list[tuple[int, float, int, str]] = []

    def look() -> None:
        before, said, after = _waited_ns(), starved_s(), _waited_ns()
        told.append((before, said, after, f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat"))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    gc.collect()
    ((before, said, after, file),) = told
    assert before <= said * 1e9 + 1
    assert said * 1e9 - 1 <= after
    assert file not in _open_files()


def test_a_forked_process_hears_of_its_own_thread() -> None:
    starved_s()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before, said, after = _waited_ns(), starved_s(), _waited_ns()
        os.write(write, b"1" if before <= said * 1e9 + 1 and said * 1e9 - 1 <= after else b"0")
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        assert answer.read() == b"1"
    os.waitpid(child, 0)
