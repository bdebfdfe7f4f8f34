"""The program that runs a job is killed during a change of the job and started again at once, as by a supervisor: parts
that the killed program started may still run.
"""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import enough, gone, verdict, visible_files

from tests.waiting import until

PROGRAM = Path(__file__).parent / "programs" / "moving.py"
ROWS = 120_000  # twenty minutes for the strikes; then all remaining rows come at once


class Runs:
    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out"
        self.families = []
        self._running = None

    def start(self, version, move, moment):
        command = [sys.executable, str(PROGRAM), str(self.out), str(self.folder / "checkpoints"), str(ROWS)]
        with (self.folder / "program.log").open("ab") as log:
            self._running = subprocess.Popen(
                [*command, str(version), move, moment],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ended(self):

        def over():
            try:
                family = psutil.Process(self._running.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                family = []
            self.families += [each for each in family if each not in self.families]
            return self._running.poll() is not None

        until(over, f"the program ended:\n{self.said}")
        return self._running.returncode

    @property
    def said(self):
        return (self.folder / "program.log").read_text()[-3000:]

    def close(self):
        if self._running is not None and self._running.poll() is None:
            self._running.kill()
            self._running.wait()


@pytest.fixture
def runs(tmp_path):
    made = Runs(tmp_path)
    yield made
    made.close()


@pytest.mark.long(160)
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_program_killed_while_it_moves_its_job_goes_on_when_it_is_started_again(runs):
    """1.15: while new slots start, when the last barrier is out, when the record is in the log, of another number of
    slots and of another program. The program begins with the declared number of slots. The replaced program is refused,
    the newer program continues; a change requested at once, before the slots exist, succeeds.
    """
    seen = 0
    for move, moment in (
        ("rescale", "stopping"),
        ("rescale", "decided"),
        ("replace", "starting"),
        ("replace", "decided"),
    ):
        runs.start(1, move, moment)
        assert runs.ended() == -9, f"{move} {moment}: {runs.said}"
        seen, before = len(visible_files(runs.out)), seen
        assert seen > before or moment != "starting", f"{move} {moment}: {runs.said}"
    runs.start(1, "rescale", "never")
    assert runs.ended() == 1
    assert "this program was replaced by another one while job moved ran" in runs.said
    runs.start(2, "rescale", "never")
    until(lambda: "rescale done with checkpoint" in runs.said or runs._running.poll() is not None, "it was rescaled")
    enough(runs.out)
    assert runs.ended() == 0, runs.said
    assert ", 3 slots" in runs.said
    assert verdict(runs.out, ROWS).right, verdict(runs.out, ROWS)
    until(lambda: all(map(gone, runs.families)), "all that the killed ones had started left")
