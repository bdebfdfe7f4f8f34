"""Cores of a process tree: from the text of /proc, and over samples that are given as data."""

import os
import time
from dataclasses import replace

import pytest

from benchmarks.usage import Process, Tally, _by_proc, _by_psutil, parsed

S = 10**9
EPOCH = 1_790_000_000 * S  # as large as a real clock's nanoseconds
TICKS = os.sysconf("SC_CLK_TCK")


def stat(pid: int, name: str, parent: int, user: int, system: int, began: int, pages: int) -> str:
    """A line in the format of proc(5); unread fields are 7."""
    return f"{pid} ({name}) S {parent} 7 7 7 7 7 7 7 7 7 {user} {system} 7 7 7 7 7 7 {began} 7 {pages} 7 7 7\n"


def one(pid: int, parent: int, cpu_s: float, began: float = 1.0, rss: int = 1_000) -> Process:
    return Process(pid=pid, parent=parent, began=began, cpu_s=cpu_s, rss_bytes=rss)


@pytest.mark.parametrize("name", ["java", "a b", "(sd-pam)", "x) S 1 (y"])
def test_a_stat_line_is_read_whatever_the_command_is_called(name: str) -> None:
    found = parsed(stat(42, name, 7, 3 * TICKS, TICKS, 900, 10))
    assert (found.pid, found.parent, found.began, found.cpu_s) == (42, 7, 900.0, 4.0)
    assert found.rss_bytes == 10 * os.sysconf("SC_PAGE_SIZE")


def test_driver_jvm_and_workers_count_and_the_harness_and_strangers_do_not() -> None:
    """1 harness → 2 engine → 3 JVM → 4 worker; 1 → 5 feeder; 9 a stranger. Sums are of 2, 3 and 4."""
    tally = Tally(2)
    for second, cpu_s in ((0, 0.0), (10, 5.0)):
        tree = [one(1, 0, cpu_s), one(2, 1, cpu_s), one(3, 2, cpu_s), one(4, 3, cpu_s), one(5, 1, cpu_s), one(9, 0, 99)]
        tally.add(EPOCH + second * S, tree)
    assert tally.cpu_between(EPOCH, EPOCH + 10 * S) == 15.0
    assert tally.peak_bytes() == 3_000


def test_the_measured_interval_is_cut_out_of_the_samples_around_it() -> None:
    tally = Tally(2)
    for at_s, cpu_s in ((0.0, 0.0), (1.0, 1.0), (2.0, 3.0), (3.0, 3.0)):
        tally.add(EPOCH + int(at_s * S), [one(2, 1, cpu_s)])
    assert tally.cpu_between(EPOCH + S // 2, EPOCH + 3 * S // 2) == pytest.approx(0.5 + 1.0)
    assert tally.cpu_between(EPOCH + 2 * S, EPOCH + 3 * S) == 0.0


def test_what_a_process_had_used_stays_when_it_has_ended() -> None:
    tally = Tally(2)
    tally.add(EPOCH, [one(2, 1, 0.0), one(3, 2, 0.0)])
    tally.add(EPOCH + S, [one(2, 1, 0.5), one(3, 2, 2.0)])
    tally.add(EPOCH + 2 * S, [one(2, 1, 1.0)])
    assert tally.cpu_between(EPOCH, EPOCH + 2 * S) == 3.0


def test_a_process_whose_parent_has_ended_still_counts_and_so_do_its_children() -> None:
    tally = Tally(2)
    tally.add(EPOCH, [one(2, 1, 0.0), one(3, 2, 0.0), one(4, 3, 0.0)])
    tally.add(EPOCH + S, [one(2, 1, 0.0), one(4, 1, 1.0), one(5, 4, 0.5)])  # 3 has ended: 4 belongs to init now
    assert tally.cpu_between(EPOCH, EPOCH + S) == 1.5


def test_a_strangers_process_with_the_number_of_one_that_has_ended_does_not_count() -> None:
    tally = Tally(2)
    tally.add(EPOCH, [one(2, 1, 0.0), one(3, 2, 1.0)])
    tally.add(EPOCH + S, [one(2, 1, 0.0), replace(one(3, 1, 50.0), began=2.0)])
    assert tally.cpu_between(EPOCH, EPOCH + S) == 0.0


@pytest.mark.slow
def test_both_readers_of_the_process_table_see_this_process_alike() -> None:
    ended = time.process_time() + 0.05
    while time.process_time() < ended:
        pass
    seen = [next(found for found in read() if found.pid == os.getpid()) for read in (_by_proc, _by_psutil)]
    assert seen[0].parent == seen[1].parent == os.getppid()
    assert seen[0].cpu_s == pytest.approx(seen[1].cpu_s, abs=5.0)
    assert seen[0].cpu_s >= 0.04
    assert min(found.rss_bytes for found in seen) > 5_000_000
