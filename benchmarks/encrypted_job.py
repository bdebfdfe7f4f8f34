"""A whole job with encrypted rows beside the same job in plaintext: slots on two hosts of network namespaces.

    python -m benchmarks.encrypted_job --pairs 7 --rates 100000 0     (as root, or where users may make namespaces)

Keyed count; coordinator and slots as in `benchmarks.slots`. Rate 0 is flat out. Runs of a pair are in turn, and each
pair begins with the other kind. Connections with the coordinator are encrypted in both kinds. Reported are medians, and
median, lowest and highest of the pairs' differences. Processor time is that of both slots, per row of the sink. With
--nice all processes have priority over others, as in `benchmarks.slots`.
"""

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.slots import SLOTS, Order, go_before_others, running
from benchmarks.stamps import percentiles, read_stamps
from benchmarks.usage import parsed
from tests.hosts.namespaces import IPV4, PRIVATE, Network, enter, is_inside, why_forbidden

_FLAT_OUT = 1e9  # rows per second that no source has
_PLAINTEXT, _ENCRYPTED = "plaintext", "encrypted"


@dataclass(frozen=True)
class Pair:
    """Figures by name of two runs in turn."""

    plaintext: Mapping[str, float]
    encrypted: Mapping[str, float]

    def difference(self, name: str) -> float:
        """In percent; of latencies in milliseconds."""
        before, after = self.plaintext[name], self.encrypted[name]
        return after - before if name.endswith("ms") else 100 * (after / before - 1)


def lines(pairs: Sequence[Pair]) -> list[str]:
    """Rows of the table: a figure each."""
    made = []
    for name in pairs[0].plaintext:
        unit = "ms" if name.endswith("ms") else "%"
        more = [each.difference(name) for each in pairs]
        plaintext = statistics.median(each.plaintext[name] for each in pairs)
        encrypted = statistics.median(each.encrypted[name] for each in pairs)
        spread = f"{statistics.median(more):+.2f} {unit} ({min(more):+.2f} to {max(more):+.2f})"
        made.append(f"| {name} | {_shown(plaintext)} | {_shown(encrypted)} | {spread} |")
    return made


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _run(network: Network, kind: str, rate: float, given: argparse.Namespace) -> dict[str, float]:
    folder = PRIVATE / "job"
    shutil.rmtree(folder, ignore_errors=True)
    flat_out = not rate
    order = Order(
        "keyed-count",
        rate or _FLAT_OUT,
        given.keys,
        given.latency_target,
        1.0,
        str(folder),
        IPV4.address(1),  # of the switch, where this process is
        plaintext=kind == _PLAINTEXT,
        counted=flat_out,
    )
    places = [network.command(f"slot-{slot}", ()) for slot in range(SLOTS)]
    with running(order, places) as (slots, _):
        time.sleep(given.warm_up)
        before_s, began_ns = _cpu_s(slots), time.time_ns()
        time.sleep(given.seconds)
        spent_s, ended_ns = _cpu_s(slots) - before_s, time.time_ns()
        time.sleep(1.5 * order.interval_s)  # the last rows are written with the next checkpoint
    stamps = read_stamps(folder / "rows")
    seconds = (ended_ns - began_ns) / 1e9
    if flat_out:
        counts = stamps.intended[(stamps.arrived >= began_ns) & (stamps.arrived < ended_ns)]
        rows = int(counts.sum())
        return {"rows/s": rows / seconds, "slots' processor time, us a row": spent_s / rows * 1e6}
    due = stamps.due_in(began_ns, ended_ns)
    found = percentiles(due.latency_ns)
    assert found is not None, "no row was due"
    return {
        "slots' processor time, us a row": spent_s / len(due.intended) * 1e6,
        "p50, ms": found.p50,
        "p99, ms": found.p99,
    }


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(parsed(Path(f"/proc/{pid}/stat").read_text()).cpu_s for pid in pids)


def _measure(given: argparse.Namespace) -> None:
    network = Network([f"slot-{slot}" for slot in range(SLOTS)])
    for rate in given.rates:
        title = f"{rate:,.0f} rows/s" if rate else "flat out"
        pairs: list[Pair] = []
        for number in range(given.pairs):
            found: dict[str, dict[str, float]] = {}
            for kind in (_PLAINTEXT, _ENCRYPTED) if number % 2 == 0 else (_ENCRYPTED, _PLAINTEXT):
                found[kind] = _run(network, kind, rate, given)
                figures = ", ".join(f"{name} {_shown(value)}" for name, value in found[kind].items())
                print(f"{title}, {kind}: {figures}, load {os.getloadavg()[0]:.1f}", flush=True)
            pairs.append(Pair(found[_PLAINTEXT], found[_ENCRYPTED]))
        print(f"\n| {title}, {given.pairs} pairs | plaintext | encrypted | encryption adds |\n|---|---|---|---|")
        print("\n".join(lines(pairs)), flush=True)
    print(f"\n{describe()}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[100_000.0, 0.0], help="rows per second; 0: flat out")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--latency-target", type=float, default=1.0, help="ms")
    parser.add_argument("--warm-up", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--nice", type=int, default=0, help="of all processes measured")
    given = parser.parse_args(arguments)
    if not is_inside():
        if given.nice:
            go_before_others(given.nice, "benchmarks.encrypted_job")
        why = why_forbidden()
        if why:
            print(why)
            return 1
        enter([sys.executable, "-m", "benchmarks.encrypted_job", *(sys.argv[1:] if arguments is None else arguments)])
    _measure(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
