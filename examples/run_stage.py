"""What an example of `make run EXAMPLE=…` stands on: its servers, its flow, what is fed, the verdict on the result."""

import contextlib
from pathlib import Path

from barrier_runtime import Dataflow
from examples.run_check import Verdict
from examples.run_feeds import Feed
from examples.run_job import SECONDS
from examples.servers import Server


class Stage:
    """`flow` goes on for ever; `complete` says when everything that was fed is visible in the target."""

    seconds = SECONDS  # how long it is fed, unless the command line says something else
    servers: list[Server]
    flow: Dataflow
    feed: Feed
    records: int  # that are fed
    _seen: int | None = None  # rows that were visible at the last look

    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        """`stack` closes what it starts; `folder` is for data that stay; `seconds`: how long the servers are fed."""
        raise NotImplementedError

    def complete(self) -> bool:
        if self.feed.error is not None:
            raise self.feed.error
        if self.feed.is_alive():
            return False
        self._seen = self.visible_rows()
        return self._seen >= self.expected_rows()

    def known(self) -> str:
        """For a caller that waits without success for `complete`."""
        feeding = "goes on" if self.feed.is_alive() else "has ended"
        visible = "not looked at yet" if self._seen is None else f"{self._seen:,}"
        return (
            f"Fed: {self.feed.fed:,} of {self.records:,}, the feed {feeding}. Visible rows: {visible}, expected: "
            f"{self.expected_rows():,}. {self.committed()}".rstrip()
        )

    def committed(self) -> str:
        """What the target says of itself, if there is more than its rows."""
        return ""

    def visible_rows(self) -> int:
        raise NotImplementedError

    def expected_rows(self) -> int:
        raise NotImplementedError

    def check(self) -> Verdict:
        raise NotImplementedError
