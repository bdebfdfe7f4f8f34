"""A job on hosts of network namespaces, with cut, one-way, narrow and slow links; then the verdict of `make chaos`.

    python -m tests.hosts.run [--short | --spark] [--seconds 5 60 300] [--daemons 2] [--ipv6] [--only TEXT]

Exits with 0 only if no observation shows a lost, duplicated, misordered or torn row, no process of the job ended, and
each fault between two slots was noticed; also, with one line, on a machine without namespaces. Writes logs and
`result.json` below `build/hosts`.
"""

import argparse
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.hosts.namespaces import IPV4, IPV6, Network, enter, is_inside, why_forbidden
from tests.hosts.plan import SHORT, SPARK, Fault, every
from tests.hosts.spark_world import SPARK_HOSTS, SparkWorld
from tests.hosts.summary import Injury, Result, table, zeros
from tests.hosts.world import DAEMONS, DRIVER, PATIENCE_S, SLOTS, STORE, Chosen, World
from tests.integration.chaos.reader import Reader, final_figures
from tests.integration.chaos.verdict import Figures
from tests.waiting import until

ROOT = Path("build/hosts")
_SLOT_TIMEOUT_S, _SHORT_SLOT_TIMEOUT_S = 10.0, 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few faults, as in make test")
    parser.add_argument("--spark", action="store_true", help="real Spark workers, Kafka and two daemons; other faults")
    parser.add_argument("--seconds", type=float, nargs="+", default=[5], help="lengths of every fault")
    parser.add_argument("--daemons", type=int, choices=[1, 2], default=1, help="2: a standby on a host of its own")
    parser.add_argument("--ipv6", action="store_true", help="hosts have IPv6 addresses only; not with --spark")
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument(
        "--slot-timeout", type=float, help=f"{_SLOT_TIMEOUT_S:g}, in the short form {_SHORT_SLOT_TIMEOUT_S:g}"
    )
    parser.add_argument("--rate", type=float, default=400.0, help="records per second")
    given = parser.parse_args()
    if given.ipv6 and given.spark:
        parser.error("--spark has IPv4 addresses only")
    if not is_inside():
        why = why_forbidden()
        if why:
            print(f"hosts: not run, {why}")
            return 0
        enter([sys.executable, "-m", "tests.hosts.run", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the first process of a namespace ignores it by default
    planned = SPARK if given.spark else SHORT if given.short else every(given.seconds)
    faults = tuple(each for each in planned if given.only in each.name)
    timeout_s = given.slot_timeout or (_SHORT_SLOT_TIMEOUT_S if given.short else _SLOT_TIMEOUT_S)
    folder = ROOT / time.strftime("%d-%H%M%S")
    chosen = Chosen(given.rate, timeout_s, 2 if given.spark else given.daemons, given.spark, given.ipv6)
    result = Run(chosen, folder.resolve(), _say).through(faults)
    (folder / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    (folder / "result.txt").write_text(table(result) + "\n")
    print(table(result))
    print(f"{folder}/result.json, beside the logs")
    return 0 if result.clean else 1


@dataclass
class Run:
    chosen: Chosen
    folder: Path
    say: Callable[[str], None]
    injuries: list[Injury] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._more: dict[str, Figures] = {}  # of outputs beside the files
        hosts = SPARK_HOSTS if self.chosen.spark else (STORE, *DAEMONS[: self.chosen.daemons], DRIVER, *SLOTS)
        world = SparkWorld if self.chosen.spark else World
        network = Network(hosts, IPV6 if self.chosen.ipv6 else IPV4)
        self._world = world(self.chosen, network, self.folder / "logs")
        self._reader = Reader(self._world.target)

    def through(self, faults: Sequence[Fault]) -> Result:
        """Injects each fault when the job has recovered from the one before."""
        trouble = []
        try:
            self._reader.start()
            self._world.start()
            self._recovered(time.time_ns())
            self._say("the job runs")
            for fault in faults:
                self.injuries.append(self._injured(fault))
            self._world.stop()
            self._more = self._world.audits()
        except Exception as error:  # any error: the figures so far are evidence
            traceback.print_exc()
            trouble.append(f"{type(error).__name__}: {error}")
        if self._reader.error is None:
            self._reader.stop()
        return self._result(trouble)

    def _injured(self, fault: Fault) -> Injury:
        before = until(self._world.status, "the coordinator answers", PATIENCE_S)
        began, began_ns = time.monotonic(), time.time_ns()
        noticed_s: float | None = None
        with fault.apply(self._world):
            while (
                time.monotonic() < began + fault.seconds
                or (fault.until_noticed and noticed_s is None)
                or (fault.until_output and not self._reader.committed_after(began_ns + round(fault.seconds * 1e9)))
            ):
                self._check(fault)
                status = self._world.status()
                changed = status is not None and (
                    status.generations != before.generations or status.phase != "running" or status.silent_links
                )
                if changed and noticed_s is None:
                    noticed_s = time.monotonic() - began
                assert time.monotonic() < began + fault.seconds + PATIENCE_S, f"{fault}: never noticed"
                time.sleep(0.1)
        healed_ns = time.time_ns()
        recovered_ns = self._recovered(healed_ns)
        after = until(self._whole, "all slots run", PATIENCE_S)
        injury = Injury(
            fault.name,
            fault.seconds,
            after.generations - before.generations,
            noticed_s,
            (recovered_ns - healed_ns) / 1e9,
            self._quiet_s(began_ns, recovered_ns),
        )
        noticed = "" if noticed_s is None else f"noticed after {noticed_s:.1f} s, "
        self._say(f"{fault}: {noticed}recovered {injury.recovery_s:.1f} s after its end")
        return injury

    def _whole(self) -> object:
        self._check(None)
        status = self._world.status()
        return status if status is not None and status.phase == "running" and not status.missing_slots else None

    def _recovered(self, since_ns: int) -> int:
        """Waits until rows due after `since_ns` are visible; returns the time at which they were."""

        def visible() -> int | None:
            self._check(None)
            return self._reader.committed_after(since_ns)

        return until(visible, "new rows are visible", PATIENCE_S) or 0

    def _quiet_s(self, since_ns: int, until_ns: int) -> float:
        """Longest time without a new commit record of all sinks."""
        longest = 0.0
        for view in self._reader.sinks.values():
            times = [each.written_ns for each in tuple(view.timeline)]
            times = [each for each in times if since_ns < each < until_ns]
            moments = [since_ns, *times, until_ns]
            gaps = (after - before for before, after in itertools.pairwise(moments))
            longest = max(longest, max(gaps) / 1e9)
        return longest

    def _check(self, fault: Fault | None) -> None:
        """Raises if a process of the job has ended, or the reader."""
        if self._reader.error is not None:
            raise self._reader.error
        if ended := self._world.ended():
            raise ChildProcessError(ended if fault is None else f"{fault}: {ended}")

    def _result(self, trouble: list[str]) -> Result:
        observed = {sink: view.audit.figures for sink, view in self._reader.sinks.items()}
        final = {**final_figures(self._world.target), **self._more}
        why_not = [*trouble]
        for title, views in (("observed", observed), ("final", final)):
            why_not += [
                f"{title} {sink} is not the truth: {figures.examples[:3]}"
                for sink, figures in views.items()
                if not figures.right or not figures.rows
            ]
        unrecorded, changed = self._reader.folder.compare(self._reader.recorded)
        if unrecorded and not trouble:
            why_not.append(f"{len(unrecorded)} files show that no record names")
        if changed:
            why_not.append(f"{len(changed)} files changed or vanished after they had been seen")
        return Result(
            clean=not why_not,
            why_not=tuple(why_not),
            injuries=tuple(self.injuries),
            rows={sink: figures.rows for sink, figures in final.items()},
            observations={sink: figures.observations for sink, figures in observed.items()},
            zeros=zeros([*observed.values(), *final.values()]),
            daemons=self.chosen.daemons,
            slot_timeout_s=self.chosen.slot_timeout_s,
            seconds=time.monotonic() - self._began,
            load_average=os.getloadavg()[0],
        )

    def _say(self, text: str) -> None:
        self.say(f"{time.monotonic() - self._began:7.1f} s  {text}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
