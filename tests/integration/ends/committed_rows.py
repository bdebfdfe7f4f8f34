"""The reader of the kill tests that write files: through the sink's commit log, whole checkpoints only."""

import json
from pathlib import Path
from urllib.parse import urlsplit

from barrier_runtime.sinks.commit_log import committed_files
from state.errors import InvalidJob
from tests.integration.ends.audit import Seen


class CommittedRows:
    """Reads each file that the commit log names once, when it is new."""

    def __init__(self, folder: Path, job: str, sink: str) -> None:
        self._folder = folder
        self._job, self._sink = job, sink
        self._read: set[str] = set()

    def look(self) -> Seen:
        rows = []
        for url in self._names():
            if url not in self._read:
                self._read.add(url)
                rows += [json.loads(line) for line in Path(urlsplit(url).path).read_text().splitlines()]
        return Seen([row["value"] for row in rows], [row["n"] for row in rows], whole=False)

    def _names(self) -> tuple[str, ...]:
        try:
            return committed_files(str(self._folder), self._job, self._sink)
        except InvalidJob:  # nothing is committed yet
            return ()
