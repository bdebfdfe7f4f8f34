"""Ranges of a file and the threads that fetch them: requests, retained bytes, and priority."""

import random
import threading
from concurrent.futures import Future

import pytest

from barrier_runtime.connectors.source_bases.ranges import (
    AHEAD_BYTES,
    BLOCK_BYTES,
    FIRST_BYTES,
    PartFetcher,
    RangesFile,
)
from barrier_runtime.state.errors import Unavailable
from tests.drawn import some
from tests.waiting import until

MB = 1 << 20


class File:
    """`holds`: requests are answered when `answers` is set."""

    def __init__(self, size: int) -> None:
        self.content = random.Random(7).randbytes(size)
        self.asked: list[tuple[int, int]] = []
        self.answers = threading.Event()
        self.answers.set()

    def read(self, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        assert self.answers.wait(60)
        return self.content[offset : offset + length]


def opened(file: File, fetcher: PartFetcher | None = None) -> RangesFile:
    return RangesFile(file.read, len(file.content), fetcher)


@pytest.fixture
def fetcher() -> PartFetcher:
    return PartFetcher(lambda: None)


def test_a_small_file_is_read_whole_by_the_first_read_of_any_part(fetcher: PartFetcher) -> None:
    file = File(FIRST_BYTES)
    ranges = opened(file, fetcher)
    assert ranges.read_at(100, FIRST_BYTES - 100) == file.content[-100:]
    assert ranges.read_at(3, 0) == file.content[:3]
    assert file.asked == [(0, FIRST_BYTES)]
    ranges.close()
    assert fetcher.held_bytes == 0


@pytest.mark.slow
def test_the_ranges_behind_are_requested_while_the_first_is_awaited(fetcher: PartFetcher) -> None:
    file = File(40 * MB)
    ranges = opened(file, fetcher)
    file.answers.clear()
    assert not ranges.there(5, 100)
    until(lambda: len(file.asked) == 1 + AHEAD_BYTES // BLOCK_BYTES)
    assert sorted(file.asked)[0] == (5, BLOCK_BYTES - 5)
    assert fetcher.held_bytes == BLOCK_BYTES - 5 + AHEAD_BYTES
    file.answers.set()
    until(lambda: ranges.there(5, 100))
    assert ranges.read_at(100, 5) == file.content[5:105]
    ranges.close()
    assert fetcher.held_bytes == 0
    fetcher.close()


@pytest.mark.draws
def test_random_reads_and_forgetting_give_the_bytes_of_the_file() -> None:
    for seed in some(30):
        dice = random.Random(seed)
        file = File(dice.choice([0, 1, 1_000, FIRST_BYTES, FIRST_BYTES + 1, 5 * MB]))
        size = len(file.content)
        fetcher = dice.choice([None, PartFetcher(lambda: None, dice.choice([0, 300_000, 64 * MB]))])
        ranges = opened(file, fetcher)
        for _ in range(30):
            offset, length = dice.randint(0, size), dice.choice([0, 1, 1_000, 700_000])
            step = dice.random()
            if step < 0.3 and fetcher is not None:
                fetcher.begin_pass()
                ranges.there(offset, length)
            elif step < 0.4:
                ranges.has_read(offset)
            elif step < 0.5:
                ranges.forget(offset, size)
            elif step < 0.6:
                ranges.keep([(offset, offset + length)])
            elif step < 0.8:
                ranges.seek(offset)
                assert bytes(ranges.read_buffer(length)) == file.content[offset : offset + length]
                assert ranges.tell() == min(offset + length, size)
            else:
                assert ranges.read_at(length, offset) == file.content[offset : offset + length]
        ranges.close()
        if fetcher is not None:
            assert fetcher.held_bytes == 0
            fetcher.close()


def test_a_failed_request_is_raised_where_its_bytes_are_looked_for(fetcher: PartFetcher) -> None:
    def read(offset: int, length: int) -> bytes:
        raise Unavailable("the store is away")

    ranges = RangesFile(read, 2 * MB, fetcher)
    with pytest.raises(Unavailable, match="the store is away"):
        until(lambda: ranges.there(0, 100))
    ranges.close()
    fetcher.close()


# ---------------------------------------------------------------- the bound


def test_a_needed_part_may_exceed_the_bound_if_nothing_else_is_on_its_way() -> None:
    fetcher, file = PartFetcher(lambda: None, MB), File(10 * MB)
    file.answers.clear()
    assert not fetcher.reserve(2 * MB, needed=False)
    assert fetcher.reserve(2 * MB, needed=True)
    part: Future[bytes] = fetcher.fetch(file.read, 0, 2 * MB)
    assert not fetcher.reserve(1, needed=True)
    file.answers.set()
    part.result(60)
    fetcher.begin_pass()
    until(lambda: fetcher.reserve(2 * MB, needed=True) or fetcher.begin_pass())
    fetcher.close()


def test_who_is_refused_first_in_a_pass_keeps_those_behind_it_from_the_room() -> None:
    fetcher, file = PartFetcher(lambda: None, MB), File(10 * MB)
    assert fetcher.reserve(MB - 10, needed=True)
    file.answers.clear()
    part = fetcher.fetch(file.read, 0, MB - 10)
    fetcher.begin_pass()
    assert not fetcher.reserve(100, needed=True)
    assert not fetcher.reserve(5, needed=True)  # there would be room
    assert not fetcher.came
    fetcher.release(MB - 10)
    assert fetcher.came  # the refused reader may request again at once
    fetcher.begin_pass()
    assert fetcher.reserve(100, needed=True)
    assert fetcher.reserve(5, needed=True)
    file.answers.set()
    part.result(60)
    fetcher.close()


def test_a_closed_fetcher_wakes_nobody_and_gives_no_room() -> None:
    woken: list[int] = []
    fetcher, file = PartFetcher(lambda: woken.append(1)), File(MB)
    file.answers.clear()
    part = fetcher.fetch(file.read, 0, MB)
    fetcher.close()
    file.answers.set()
    part.result(60)
    assert woken == []
    assert not fetcher.reserve(1, needed=True)
