"""Keeps the program running as an operator's supervisor would: restarts the program after any end.

Each start has a number, a status file and a log; the mark of the start's processes carries the number.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from tests.integration.chaos.processes import MARK
from tests.integration.chaos.program import FENCED, Settings

_TAIL = 3_000  # characters of a log worth keeping
_STALE_S = 2.0  # an older status is stale


@dataclass
class Start:
    number: int
    process: "subprocess.Popen[bytes]"
    settings: Settings
    log: Path
    killed: bool = False  # by the nemesis
    code: int | None = None


@dataclass(frozen=True)
class UnexpectedEnd:
    """The program ended without a kill or a stop."""

    start: int
    code: int
    at: float  # wall clock, s
    tail: str


@dataclass
class Supervisor:
    run: str
    folder: Path
    environment: dict[str, str]
    settings: Callable[[int], Settings]
    module: str = "tests.integration.chaos.program"  # the command, with the path of the settings
    starts: list[Start] = field(default_factory=list)
    unexpected: list[UnexpectedEnd] = field(default_factory=list)
    ending: bool = False  # the next clean end is the last
    ended: bool = False

    def start(self) -> None:
        """Starts a run, also while another runs: the new run is then the current run."""
        number = len(self.starts) + 1
        settings = self.settings(number)
        settings_file = self.folder / f"settings-{number}.json"
        settings_file.write_bytes(msgspec.json.encode(settings))
        log = self.folder / "logs" / f"program-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(settings_file)],
                env={**os.environ, **self.environment, MARK: f"{self.run}/{number}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.starts.append(Start(number, process, settings, log))

    @property
    def current(self) -> Start:
        return self.starts[-1]

    def stop(self) -> None:
        """Requests a last checkpoint and the end of the current run; idempotent."""
        Path(self.current.settings.stop_file).touch()

    def status(self) -> JobStatus | None:
        """The current run's last published status; None if there is no fresh status."""
        path = Path(self.current.settings.status_file)
        try:
            age_s = time.time() - path.stat().st_mtime
            return msgspec.json.decode(path.read_bytes(), type=JobStatus) if age_s < _STALE_S else None
        except FileNotFoundError:
            return None

    def tick(self) -> None:
        """Notes which runs ended; restarts the program if required."""
        for start in self.starts:
            if start.code is None and start.process.poll() is not None:
                start.code = start.process.returncode
                self._note(start)

    def _note(self, start: Start) -> None:
        is_current = start is self.current
        stopped = start.code == 0 and (self.ending or Path(start.settings.stop_file).exists())
        fenced = start.code == FENCED and not is_current
        if not (start.killed or stopped or fenced):
            tail = start.log.read_text(errors="replace")[-_TAIL:]
            self.unexpected.append(UnexpectedEnd(start.number, start.code or 0, time.time(), tail))
        if not is_current:
            return
        if self.ending and stopped:
            self.ended = True
            return
        self.start()
        if self.ending:
            self.stop()
