"""Single use of links: at any daemon, after kills, and with late or missing answers of the store."""

import threading

import pytest

from barrier_runtime.coordinator.server.web.sessions import LINK_MS, PREFIX, LoginLinks, use
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import PutOutcome

NOW = 1_790_000_000_000


def mark_of(nonce: str, now_ms: int = NOW) -> str:
    links = LoginLinks(b"token")
    mark = links.mark(links.make(nonce, now_ms), now_ms)
    assert mark is not None
    return mark


def test_of_many_that_use_a_link_at_once_one_is_let_in() -> None:
    """G2: of several daemons on one storage, or before and after a kill."""
    store, mark, told = MemoryStore(), mark_of("n"), []
    begin = threading.Barrier(8)

    def try_it() -> None:
        begin.wait(60)
        told.append(use(store, mark, NOW))

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(told) == [False] * 7 + [True]
    assert use(store, mark_of("another"), NOW)


class Silent(MemoryStore):
    """Store that executes puts, but for a while does not answer."""

    def __init__(self, trouble: Exception | None) -> None:
        super().__init__()
        self.trouble = trouble
        self.silent = True

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        if self.silent and self.trouble is not None:
            raise self.trouble
        done = super().put_if_absent(key, data)
        return PutOutcome.UNKNOWN if self.silent else done


@pytest.mark.parametrize("trouble", [None, Unavailable("away"), ConnectionError("away")])
def test_while_the_store_does_not_say_nobody_is_let_in(trouble: Exception | None) -> None:
    """G2. A put without an answer may have happened: then the link is used up."""
    store, mark = Silent(trouble), mark_of("n")
    with pytest.raises(Unavailable):
        use(store, mark, NOW)
    store.silent = False
    assert use(store, mark, NOW) == (trouble is not None)
    assert not use(store, mark, NOW)


def test_notes_of_expired_links_are_deleted_and_all_retryable_notes_stay() -> None:
    store = MemoryStore()
    for number in range(3):
        assert use(store, mark_of(str(number), NOW + number), NOW + number)
    store.put(f"{PREFIX}strange", b"")
    late = NOW + 2 * LINK_MS + 2
    assert use(store, mark_of("late", late), late)
    kept = {info.key.removeprefix(PREFIX) for info in store.list(PREFIX)}
    assert kept == {mark_of("2", NOW + 2), mark_of("late", late)}


def test_a_store_that_cannot_list_or_delete_holds_nobody_up() -> None:
    class Unlisted(MemoryStore):
        def list(self, prefix: str):
            raise Unavailable("not now")

    assert use(Unlisted(), mark_of("n"), NOW)
