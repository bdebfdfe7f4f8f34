"""`make mutants`: plants each mutant of the catalogue in a copy of the repository and runs the tests for it.

    python -m tests.mutants.run [--only NAME …] [--wide] [--jobs N]

A mutant is *found* when the tests `Mutant.checks` fail or do not end in time. With `--wide` a surviving mutant is
also run against all unit tests and the simulation. All tests first run on the copy without a mutant: a failure there
proves nothing. Writes build/mutants.md and ends with 1 when a mutant survives.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "mutants.md"
CHECK_S = 300.0
WIDE_S = 1_800.0
UNIT_TESTS = ("tests/state", "tests/coordinator", "tests/barrier_runtime", "tests/security")
SIMULATION = ("tests/simulation/simulate.py", "--seeds", "300")


@dataclass(frozen=True)
class Verdict:
    mutant: str
    rule: str
    found_by: str  # empty: the mutant survived
    seconds: float

    @property
    def row(self) -> str:
        return f"| {self.mutant} | {self.rule} | {self.found_by or '**survived**'} | {self.seconds:.0f} |"


class Copy:
    """A folder with the files that git knows; one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_symlink() or (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name, follow_symlinks=False)

    def plant(self, mutant: Mutant) -> None:
        file = self.folder / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise SystemExit(f"mutant {mutant.name} does not fit {mutant.file}: correct its `old` in tests/mutants")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")

    def restore(self, mutant: Mutant) -> None:
        shutil.copyfile(ROOT / mutant.file, self.folder / mutant.file)

    def pytest(self, tests: Sequence[str], timeout_s: float) -> str:
        """The first failure; empty when all tests passed."""
        options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not spark", "--timeout", "120")
        return self._run(["-m", "pytest", *options, *tests], timeout_s)

    def simulation(self, timeout_s: float) -> str:
        return self._run(list(SIMULATION), timeout_s)

    def _run(self, arguments: list[str], timeout_s: float) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{' '.join(arguments[-1:])} (did not end)"
        if process.returncode == 0:
            return ""
        if process.returncode == 5:
            raise SystemExit(f"no test ran: {' '.join(arguments)}")
        return _first_failure(output) or f"{' '.join(arguments[-1:])} (exit status {process.returncode})"


def _first_failure(output: str) -> str:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split()[1].removeprefix("tests/")
        if "seed" in line and ("FAILED" in line or "bad" in line):
            return f"simulation: {line.strip()[:120]}"
    return ""


def judge(copy: Copy, mutant: Mutant, wide: bool) -> Verdict:
    began = time.monotonic()
    copy.plant(mutant)
    try:
        found = copy.pytest(mutant.checks, CHECK_S)
        if not found and wide:
            found = copy.pytest(UNIT_TESTS, WIDE_S) or copy.simulation(WIDE_S)
    finally:
        copy.restore(mutant)
    return Verdict(mutant.name, mutant.rule, found, time.monotonic() - began)


def judge_all(mutants: Sequence[Mutant], wide: bool, jobs: int, folder: Path) -> list[Verdict]:
    copies = [Copy(_made(folder / str(number))) for number in range(jobs)]
    tests = sorted({check for mutant in mutants for check in mutant.checks})
    broken = copies[0].pytest(tests, WIDE_S)
    if broken:
        raise SystemExit(f"{broken} fails without any mutant: mend it first")
    free = list(copies)
    lock = threading.Lock()

    def one(mutant: Mutant) -> Verdict:
        with lock:
            copy = free.pop()
        try:
            verdict = judge(copy, mutant, wide)
        finally:
            with lock:
                free.append(copy)
        print(verdict.row, flush=True)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def report(verdicts: Iterable[Verdict]) -> str:
    verdicts = list(verdicts)
    found = [verdict for verdict in verdicts if verdict.found_by]
    quick = [verdict for verdict in found if verdict.seconds < 60]
    head = f"{len(found)} of {len(verdicts)} mutants found, {len(quick)} of them within a minute"
    rows = "\n".join(verdict.row for verdict in verdicts)
    return f"{head}\n\n| mutant | the rule it breaks | found by | s |\n|---|---|---|---|\n{rows}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant mutants, and see which test finds each.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these mutants only")
    parser.add_argument("--wide", action="store_true", help="show survivors to all unit tests and the simulation")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}: see tests/mutants")
    wanted = [mutant for mutant in MUTANTS if not arguments.only or mutant.name in arguments.only]
    with tempfile.TemporaryDirectory(prefix="barrier-runtime-mutants-") as folder:
        verdicts = judge_all(wanted, arguments.wide, max(1, arguments.jobs), Path(folder))
    text = report(verdicts)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text, encoding="utf-8")
    print(text.splitlines()[0])
    return 0 if all(verdict.found_by for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
