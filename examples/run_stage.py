"""Surroundings of an example of `make run`: servers, flow, feed, and verdict."""

import contextlib
from pathlib import Path

from barrier_runtime import Dataflow
from examples.run_check import Verdict
from examples.run_feeds import Feed
from examples.run_job import SECONDS
from examples.servers import Server


class Stage:
    """Surroundings of an example.

    `flow` is endless; `complete` is true when the rows of all fed records are visible."""

    seconds = SECONDS  # time of feeding, unless the command line has another
    servers: list[Server]
    flow: Dataflow
    feed: Feed
    records: int  # number of fed records
    _seen: int | None = None  # visible rows at the last check

    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        """`stack` closes the started servers; `folder` is for lasting data; `seconds`: time of feeding."""
        raise NotImplementedError

    def complete(self) -> bool:
        if self.feed.error is not None:
            raise self.feed.error
        if self.feed.is_alive():
            return False
        self._seen = self.visible_rows()
        return self._seen >= self.expected_rows()

    def known(self) -> str:
        """State of the target, for the error of a caller whose wait for `complete` takes too long."""
        feeding = "goes on" if self.feed.is_alive() else "has ended"
        visible = "not looked at yet" if self._seen is None else f"{self._seen:,}"
        return (
            f"Fed: {self.feed.fed:,} of {self.records:,}, the feed {feeding}. Visible rows: {visible}, expected: "
            f"{self.expected_rows():,}. {self.committed()}".rstrip()
        )

    def committed(self) -> str:
        """The target's own description of the stored data, if there is more than rows."""
        return ""

    def visible_rows(self) -> int:
        raise NotImplementedError

    def expected_rows(self) -> int:
        raise NotImplementedError

    def check(self) -> Verdict:
        raise NotImplementedError
