"""A whole chaos run: the job, the store behind a proxy, nemesis and reader; then the verdict.

    python -m tests.integration.chaos.run --minutes 10 --seed 7 [--kills 200] [--burn 2] [--plan 40]

Exits with 0 only if no observation, the last included, shows a lost, duplicated, misordered or torn row, the job was
healthy in time after the last fault, and no process, socket or directory was left behind. Writes all findings to
`build/chaos/<seed>-<time>/result.json`, next to the logs.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from examples.servers import s3_server
from tests.integration.chaos.disk import SmallDisk
from tests.integration.chaos.nemesis import Nemesis
from tests.integration.chaos.plan import plan
from tests.integration.chaos.processes import Listener, all_listeners, family, listeners_of, send
from tests.integration.chaos.program import ProgramSettings
from tests.integration.chaos.reader import Reader, final_figures
from tests.integration.chaos.report import Leftovers, Result, SinkFigures, Unexpected, counted, recoveries, table
from tests.integration.chaos.store_proxy import ProxyControl, store_proxy
from tests.integration.chaos.supervisor import Supervisor
from tests.integration.chaos.verdict import Figures

ROOT = Path("build/chaos")
HEALTHY_WITHIN_S = 180.0  # after the last fault; also how long the job may be unhealthy during the run
_LEAVE_S = 120.0  # how long processes may take to leave after the end
_START_S = 600.0  # of a program on a machine that has much else to do


@dataclass(frozen=True)
class Chosen:
    minutes: float
    seed: int
    burn: int = 0
    kills: int = 0  # continues until this many kills, even after the time is over
    rows_per_second: float = 2_000.0
    healthy_within_s: float = HEALTHY_WITHIN_S
    first: int = 0  # skip so many actions of the plan
    mode: Literal["exactly_once", "at_least_once"] = "exactly_once"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--burn", type=int, default=0, help="busy processes that take the processor away")
    parser.add_argument("--kills", type=int, default=0, help="go on until there were so many, if that takes longer")
    parser.add_argument("--rate", type=float, default=2_000.0, help="records per second")
    parser.add_argument("--healthy-within", type=float, default=HEALTHY_WITHIN_S, help="seconds after the last fault")
    parser.add_argument("--first", type=int, default=0, help="begin at this action of the plan")
    parser.add_argument(
        "--mode", choices=["exactly_once", "at_least_once"], default="exactly_once", help="at_least_once: see it fail"
    )
    parser.add_argument("--plan", type=int, metavar="N", help="only print the first N actions")
    given = parser.parse_args()
    if given.plan is not None:
        for number, action in enumerate(itertools.islice(plan(given.seed), given.plan)):
            print(f"{number:4} {action}")
        return 0
    chosen = Chosen(
        minutes=given.minutes,
        seed=given.seed,
        burn=given.burn,
        kills=given.kills,
        rows_per_second=given.rate,
        healthy_within_s=given.healthy_within,
        first=given.first,
        mode=given.mode,
    )
    folder = ROOT / f"{chosen.seed}-{time.strftime('%H%M%S')}"
    result = chaos(chosen, folder.resolve(), _say)
    print(table(result))
    print(
        f"{folder / 'result.json'}; again: make chaos MINUTES={chosen.minutes:g} SEED={chosen.seed} BURN={chosen.burn}"
    )
    return 0 if result.clean else 1


def chaos(chosen: Chosen, folder: Path, say: Callable[[str], None]) -> Result:
    """Runs the chaos with all files below `folder`, which must not exist yet."""
    for name in ("logs", "tmp", "jvm", "spark", "target"):
        (folder / name).mkdir(parents=True)
    run = f"{folder.name}-{os.getpid()}"
    say(f"seed {chosen.seed}, {chosen.minutes:g} minutes, everything is in {folder}")
    with contextlib.ExitStack() as stack:
        disk = SmallDisk(folder / "local")
        stack.callback(disk.close)
        bucket = stack.enter_context(s3_server()).url
        proxy = stack.enter_context(store_proxy(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0))
        stack.callback(_end_family, run)
        stack.enter_context(_busy(chosen.burn))
        run_ = _Run(chosen, folder, run, disk, bucket, proxy, say)
        result = run_.to_the_end()
    (folder / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


class _Run:
    def __init__(
        self,
        chosen: Chosen,
        folder: Path,
        run: str,
        disk: SmallDisk,
        bucket: str,
        proxy: ProxyControl,
        say: Callable[[str], None],
    ) -> None:
        self._chosen = chosen
        self._folder = folder
        self._name = run
        self._disk = disk
        self._bucket = bucket
        self._proxy = proxy
        self._say = say
        self._began = time.monotonic()
        self._listeners: set[Listener] = set()
        self._tokens: set[int] = set()
        self._looked = 0.0
        self._trouble: list[str] = []
        self._reader = Reader(folder / "target")
        self._supervisor = Supervisor(run, folder, self._environment(), self._settings)
        self._nemesis = Nemesis(
            run,
            self._supervisor,
            self._reader,
            proxy,
            disk,
            chosen.healthy_within_s,
            self._tell,
            self._keep_house,
        )

    def to_the_end(self) -> Result:
        self._reader.start()
        self._supervisor.start()
        nemesis = self._nemesis
        healthy_s: float | None = None
        leftovers: Leftovers | None = None
        try:
            if not nemesis.wait(lambda: self._reader.committed_after(0) is not None, _START_S):
                raise TimeoutError(f"nothing was committed {_START_S:.0f} s after the start, before any fault")
            self._tell("the job runs")
            end = time.monotonic() + self._chosen.minutes * 60
            nemesis.torment(
                itertools.islice(plan(self._chosen.seed), self._chosen.first, None),
                lambda: time.monotonic() > end and nemesis.kills >= self._chosen.kills,
            )
            last_fault_ns = nemesis.relent()
            self._tell("faults end")
            nemesis.await_healthy(last_fault_ns)
            healthy_s = ((self._reader.committed_after(last_fault_ns) or 0) - last_fault_ns) / 1e9
            self._tell(f"healthy after {healthy_s:.1f} s")
            self._stop_program()
            leftovers = self._leftovers()
        except Exception as error:  # any error: evidence first, and the figures known so far
            self._trouble.append(f"{type(error).__name__}: {error}")
            self._keep_evidence()
            traceback.print_exc()
            nemesis.relent()
        if self._reader.error is None:
            self._reader.stop()
        return self._result(healthy_s, leftovers)

    # ------------------------------------------------------------ the program

    def _settings(self, number: int) -> ProgramSettings:
        return ProgramSettings(
            target=str(self._folder / "target"),
            checkpoints=f"{self._bucket}/checkpoints",
            status_file=str(self._folder / f"status-{number}.json"),
            stop_file=str(self._folder / f"stop-{number}"),
            rows_per_second=self._chosen.rows_per_second,
            jvm_temporary=str(self._folder / "jvm"),
            mode=self._chosen.mode,
        )

    def _environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self._proxy.endpoint,
            "TMPDIR": str(self._folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_HOME": str(_spark_home(self._folder / "spark")),
        }

    def _stop_program(self) -> None:
        self._supervisor.ending = True
        self._supervisor.stop()
        if not self._nemesis.wait(lambda: self._supervisor.ended, self._chosen.healthy_within_s):
            raise TimeoutError(f"the program had not stopped {self._chosen.healthy_within_s:.0f} s after it was asked")
        self._tell("the program has ended")

    # ------------------------------------------------------------ on the way

    def _tell(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        view = next(iter(self._reader.sinks.values()))
        self._say(f"{elapsed:7.1f} s  {self._nemesis.kills:3} kills  {view.records:5} records  {text}")

    def _keep_house(self) -> None:
        """Once a second: links the coordinators' logs, whose folders vanish, into `logs`; notes tokens and listening
        ports.
        """
        if time.monotonic() < self._looked + 1.0:
            return
        self._looked = time.monotonic()
        for pattern in ("tmp/*/coordinator.log", "spark/work/*/*/stderr"):
            for log in self._folder.glob(pattern):
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.link(log, self._folder / "logs" / f"{log.parent.parent.name}-{log.parent.name}.log")
        status = self._supervisor.status()
        if status is not None and status.token:
            self._tokens.add(status.token)
        self._listeners |= listeners_of({process.pid for process in family(self._name)})

    def _keep_evidence(self) -> None:
        lines = [f"{each.pid} {each.role} start {each.mark} stopped={each.stopped}" for each in family(self._name)]
        (self._folder / "logs" / "processes-when-stuck.txt").write_text("\n".join(lines) + "\n")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(self._supervisor.current.settings.status_file, self._folder / "logs" / "status-when-stuck.json")

    # ------------------------------------------------------------ the end

    def _leftovers(self) -> Leftovers:
        self._nemesis.wait(lambda: not family(self._name) and not self._listeners & all_listeners(), _LEAVE_S)
        left = family(self._name)
        folders = sorted(
            str(entry.relative_to(self._folder))
            for place in (
                "tmp",
                "local",
                f"local/barrier-runtime-{os.getuid()}",
            )  # the last is kept, empty, for all runs
            if (self._folder / place).is_dir()
            for entry in (self._folder / place).iterdir()
            if entry.name != f"barrier-runtime-{os.getuid()}"
        )
        ours = [folder for folder in folders if not Path(folder).name.startswith(("spark-", "blockmgr-"))]
        return Leftovers(
            processes=tuple(f"{each.pid} {each.role} of start {each.mark}" for each in left),
            ports=tuple(sorted(port for port, _ in self._listeners & all_listeners())),
            directories=tuple(ours),
            of_spark=tuple(sorted(set(folders) - set(ours))),
        )

    def _result(self, healthy_s: float | None, leftovers: Leftovers | None) -> Result:
        reader, nemesis, supervisor = self._reader, self._nemesis, self._supervisor
        observed = {sink: view.audit.figures for sink, view in reader.sinks.items()}
        final = final_figures(self._folder / "target")
        unrecorded, changed = reader.folder.compare(reader.recorded)
        if leftovers is None:  # the run broke off: files between publication and record are to be expected
            unrecorded = []
        positions = {view.audit.positions for view in reader.sinks.values()}
        agree = len(positions) == 1
        times, compound = recoveries(nemesis.strikes, reader.committed_after)
        strikes, kills, during = counted(nemesis.strikes)
        counts = self._proxy.counts()
        why_not = [*self._trouble]
        for title, views in (("observed", observed), ("final", final)):
            for sink, figures in views.items():
                if not figures.right:
                    why_not.append(f"{title} {sink} is not the truth: {figures.examples[:3]}")
        if unrecorded:
            why_not.append(f"{len(unrecorded)} files show that no record names")
        if changed:
            why_not.append(f"{len(changed)} files changed or vanished after they had been seen")
        if leftovers is not None and not agree:
            why_not.append(f"the sinks ended at different source positions: {sorted(positions)}")
        if leftovers is not None and not leftovers.none:
            why_not.append("something was left behind")
        return Result(
            clean=not why_not,
            why_not=tuple(why_not),
            seed=self._chosen.seed,
            minutes=self._chosen.minutes,
            burn=self._chosen.burn,
            load_average=os.getloadavg()[2],
            strikes=strikes,
            kills=kills,
            kills_in_all=nemesis.kills,
            kills_during_recovery=during,
            unavailable=dict(nemesis.unavailable),
            spoiled_requests={name: getattr(counts, name) for name in counts.__struct_fields__},
            starts_of_the_program=len(supervisor.starts),
            unexpected_ends=tuple(Unexpected(end.start, end.code, end.tail) for end in supervisor.unexpected),
            generations=len(self._tokens),
            recovery_seconds=times,
            compound_recovery_seconds=compound,
            healthy_within_s=healthy_s,
            healthy_bound_s=self._chosen.healthy_within_s,
            observed={sink: _plain(each) for sink, each in observed.items()},
            final={sink: _plain(each) for sink, each in final.items()},
            unrecorded_files=tuple(unrecorded),
            changed_files=tuple(changed),
            sinks_agree=agree,
            leftovers=leftovers,
        )


def _plain(figures: Figures) -> SinkFigures:
    return SinkFigures(
        figures.rows,
        figures.observations,
        figures.wrong_observations,
        figures.lost,
        figures.duplicated,
        figures.out_of_order,
        figures.wrong_state,
        figures.torn,
        tuple(figures.examples),
    )


def _spark_home(folder: Path) -> Path:
    """A copy of the installed Spark, by links. Its executors log below `folder`, not into the package."""
    import pyspark

    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


@contextlib.contextmanager
def _busy(processes: int) -> Iterator[None]:
    """Runs `processes` processes that only use up processor time."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def _end_family(run: str) -> None:
    """Whatever the program left when the run is over, in whichever way: not left to the machine."""
    for process in family(run):
        send(process, signal.SIGKILL)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
