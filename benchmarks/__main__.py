"""Entry point of the benchmarks: `python -m benchmarks <command>`; each command has `--help`.

Results go to build/bench/results.json. `run` and `all` start a new file; the other commands add to the file. Each
command then writes the report again.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import backlog, growth, hold_units, holds, plan, programme, real_time, session, workloads
from benchmarks.answers import compare
from benchmarks.backlog import ENGINES_OF_BACKLOGS, BacklogSizes
from benchmarks.ends import add_arguments, measure_all
from benchmarks.engines import BACKLOGS, ENGINES, REAL_TIME
from benchmarks.flink_setup import set_up
from benchmarks.growth import GrowthSizes
from benchmarks.latency_targets import TargetSizes, runs
from benchmarks.nexmark_beside import NexmarkSizes, beside
from benchmarks.plan import Wanted
from benchmarks.programme import SEARCHED, TableSizes
from benchmarks.real_time import COLUMNS, RealTimeSizes
from benchmarks.recovery import VICTIMS, Setting
from benchmarks.report.backlog_table import backlog_markdown
from benchmarks.report.growth import growth_markdown
from benchmarks.report.nexmark_table import nexmark_markdown
from benchmarks.report.real_time_table import real_time_markdown
from benchmarks.report.target_table import targets_markdown
from benchmarks.session import FOLDER, Store, latency_targets, measure, recover, search
from benchmarks.slow_store import command as slow_store
from examples.servers.base import ServerError

_ENGINES = ("ours", "spark", "spark-tuned", "flink", "jet", "bytewax")
_BRIEFLY = ("ours", "spark-tuned", "flink")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.do(chosen) or 0)
    except (ServerError, KeyError) as error:
        sys.exit(str(error).strip("'\""))


# ---------------------------------------------------------------- commands


def _run(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=not chosen.add)
    measure(store, _wanted(chosen))
    store.report()


def _rates(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=False)
    search(
        store,
        chosen.engine or list(_ENGINES),
        chosen.workload or list(SEARCHED),
        chosen.keys or list(Wanted.keys),
        chosen.rounds,
    )
    store.report()


def _recovery(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=False)
    setting = Setting(chosen.spare_slots, chosen.given_session)
    recover(store, chosen.victim or VICTIMS, chosen.kills, chosen.rate, chosen.pause, setting)
    store.report()


def _checkpoints(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=False)
    if chosen.quick:
        programme.quick_checkpoints(store)
    else:
        programme.checkpoints(store, chosen.rounds)
    store.report()


def _all(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=True)
    if chosen.quick:
        programme.quick(store, chosen.engine or _BRIEFLY)
    else:
        programme.everything(store, chosen.engine or _ENGINES, chosen.rounds)
    store.report()


def _table(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=not chosen.add)
    sizes = TableSizes(
        seconds=chosen.seconds,
        warm_up_s=chosen.warm_up,
        rounds=chosen.rounds,
        rows=chosen.rows,
        keys=chosen.keys,
        rates=chosen.rates,
        kills=chosen.kills,
        cost_rounds=chosen.cost_rounds,
    )
    programme.table(store, chosen.engine or programme.TABLE_ENGINES, sizes)
    store.report()


def _report(chosen: argparse.Namespace) -> None:
    Store(chosen.folder, fresh=False).report()


def _latency_targets(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=False)
    sizes = TargetSizes(
        targets_ms=chosen.targets,
        rates=chosen.rates,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        warm_up_s=chosen.warm_up,
        keys=chosen.keys,
    )
    latency_targets(store, list(runs(sizes)), chosen.folder / "run/latency-targets")
    store.report()
    print(targets_markdown(store.results))


def _growth(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=False)
    sizes = GrowthSizes(
        rates=chosen.rates,
        keys=chosen.keys,
        parallelism=chosen.parallelism,
        at_rate=chosen.at_rate,
        at_keys=chosen.at_keys,
        at_parallelism=chosen.at_parallelism,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        warm_up_s=chosen.warm_up,
    )
    engines = session.there(store, chosen.engine or _BRIEFLY)
    session.growth(store, list(growth.runs(sizes, engines)), chosen.folder / "run/growth")
    store.report()
    print(growth_markdown(store.results))


def _real_time(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=not chosen.add)
    sizes = RealTimeSizes(
        rates=chosen.rates,
        low_rates=chosen.low_rates,
        workloads=chosen.workload or REAL_TIME,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        warm_up_s=chosen.warm_up,
    )
    engines = session.there(store, chosen.engine or COLUMNS)
    folder = chosen.folder / "run/real-time"
    if chosen.kills:
        sizes = replace(sizes, workloads=chosen.workload or ("rtm-a",), rates=(chosen.low_rates[0],), low_rates=())
        session.real_time_kills(store, list(real_time.runs(sizes, engines)), folder, chosen.kills, chosen.pause)
    else:
        session.real_time(store, list(real_time.runs(sizes, engines)), folder)
    store.save()
    print(real_time_markdown(store.results))


def _backlog(chosen: argparse.Namespace) -> None:
    store = Store(chosen.folder, fresh=not chosen.add)
    sizes = BacklogSizes(
        rows=chosen.rows,
        wide_rows=chosen.wide_rows,
        sources=chosen.source or BacklogSizes.sources,
        rounds=chosen.rounds,
        parallelism=chosen.parallelism,
        workloads=chosen.workload or (),
    )
    engines = session.there(store, chosen.engine or ENGINES_OF_BACKLOGS)
    session.backlog(store, list(backlog.runs(sizes, engines)), chosen.folder / "run/backlog", chosen.folder / "input")
    print(backlog_markdown(store.results))


def _ends(chosen: argparse.Namespace) -> None:
    measure_all(chosen)


def _slow_store(chosen: argparse.Namespace) -> int:
    return slow_store.run(chosen)


def _holds(chosen: argparse.Namespace) -> None:
    holds.measure(chosen.runs, chosen.unit)


def _answers(chosen: argparse.Namespace) -> int:
    return compare(
        chosen.workload or workloads.names("nexmark"),
        chosen.folder / "run",
        chosen.rows,
        chosen.parallelism,
        chosen.engine or ["ours"],
    )


def _nexmark(chosen: argparse.Namespace) -> int:
    store = Store(chosen.folder, fresh=not chosen.add)
    sizes = NexmarkSizes(answers=chosen.answers, rows=chosen.rows, rounds=chosen.rounds, parallelism=chosen.parallelism)
    queries = chosen.workload or workloads.names("nexmark")
    wrong = beside(store, chosen.engine or ("ours", "flink"), queries, sizes, chosen.folder)
    store.report()
    print(nexmark_markdown(store.results))
    return wrong


def _flink_setup(chosen: argparse.Namespace) -> None:
    print(set_up())


# ---------------------------------------------------------------- the command line


def _wanted(chosen: argparse.Namespace) -> Wanted:
    known = workloads.names()
    picked = chosen.workload or ["keyed-count"]
    for name in picked:
        workloads.workload(name)
    brief = chosen.quick
    return Wanted(
        engines=chosen.engine or (_BRIEFLY if brief else _ENGINES),
        workloads=picked,
        measures=chosen.measure or ["latency"],
        rates=chosen.rates or ([10_000.0] if brief else Wanted.rates),
        visible_rates=chosen.rates or ([1_000.0] if brief else Wanted.visible_rates),
        keys=chosen.keys or ([10_000] if brief else Wanted.keys),
        source=chosen.source,
        rounds=chosen.rounds or (1 if brief else 3),
        seconds=chosen.seconds or (6.0 if brief else 40.0),
        warm_up_s=chosen.warm_up if chosen.warm_up is not None else (3.0 if brief else 15.0),
        interval_ms=chosen.interval,
        visible_interval_ms=chosen.visible_interval,
        rows=chosen.rows or (4_000_000 if brief else plan.ROWS),
        parallelism=chosen.parallelism,
        folder=str(chosen.folder / "run"),
        nexmark=[name for name in known if name in workloads.names("nexmark")],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, do: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(do=do)
        added.add_argument("--folder", type=Path, default=FOLDER, help="of results and report (%(default)s)")
        return added

    every = command("all", _all, "everything, and the report: what `make bench` does")
    every.add_argument("--quick", action="store_true", help="a taste of each figure, in 5 minutes")
    every.add_argument("--rounds", type=int, default=3)
    every.add_argument("--engine", action="append", help=", ".join(ENGINES))

    side = command(
        "table", _table, "the table of figures, engines in turn, in an hour and a half; sizes can be changed"
    )
    side.add_argument("--add", action="store_true", help="to the results there are")
    side.add_argument("--engine", action="append", help=f"again for each: {', '.join(ENGINES)}")
    side.add_argument("--seconds", type=float, default=TableSizes.seconds, help="measured per run, after the warm-up")
    side.add_argument("--warm-up", type=float, default=TableSizes.warm_up_s, help="seconds")
    side.add_argument("--rounds", type=int, default=TableSizes.rounds, help="engines take turns (%(default)s)")
    side.add_argument("--rows", type=int, default=TableSizes.rows, help="of a bounded input, at most")
    side.add_argument("--keys", type=int, nargs="+", default=TableSizes.keys)
    side.add_argument("--rates", type=float, nargs="+", default=TableSizes.rates, help="rows per second")
    side.add_argument("--kills", type=int, default=TableSizes.kills)
    side.add_argument("--cost-rounds", type=int, default=TableSizes.cost_rounds, help="with and without checkpoints")

    one = command("run", _run, "engines side by side")
    one.add_argument("--quick", action="store_true", help="one short round at 10,000 rows per second")
    one.add_argument("--add", action="store_true", help="to the results there are")
    one.add_argument("--engine", action="append", help=f"again for each: {', '.join(ENGINES)}")
    one.add_argument("--workload", action="append", help=f"again for each: {', '.join(workloads.names())}")
    one.add_argument("--measure", action="append", choices=["latency", "visible", "throughput"])
    one.add_argument("--rates", type=float, nargs="+", help="rows per second")
    one.add_argument("--keys", type=int, nargs="+", help="latency is measured with the first")
    one.add_argument("--source", choices=["generator", "kafka"], default="generator", help="for latency")
    one.add_argument("--rounds", type=int)
    one.add_argument("--seconds", type=float, help="measured, after the warm-up")
    one.add_argument("--warm-up", type=float, help="seconds")
    one.add_argument("--interval", type=int, default=1_000, help="ms between checkpoints")
    one.add_argument("--visible-interval", type=int, default=100, help="the same where visible latency is measured")
    one.add_argument("--rows", type=int, help="of a bounded input")
    one.add_argument("--parallelism", type=int, default=2)

    hold = command(
        "holds", _holds, "longest hold of a slot's loop by a reader (processor time), per connector and unit"
    )
    hold.add_argument("--runs", type=int, default=3, help="the largest counts (%(default)s)")
    hold.add_argument(
        "--unit", nargs="*", default=(), help=f"words of the names of units: {'; '.join(hold_units.UNITS)}"
    )

    search = command("rates", _rates, "highest rate that each engine holds")
    search.add_argument("--engine", action="append")
    search.add_argument("--workload", action="append")
    search.add_argument("--keys", type=int, nargs="+")
    search.add_argument("--rounds", type=int, default=1)

    recover = command("recovery", _recovery, "SIGKILL under load: time until output flows again")
    recover.add_argument("--victim", action="append", choices=["slot", "executor", "coordinator"])
    recover.add_argument("--kills", type=int, default=10, help="of each")
    recover.add_argument("--rate", type=float, default=50_000, help="rows per second")
    recover.add_argument("--pause", type=float, default=5.0, help="seconds between a recovery and the next kill")
    recover.add_argument("--spare-slots", type=int, default=0)
    recover.add_argument("--given-session", action="store_true", help="spark= of a session without our settings")

    grid = command("checkpoints", _checkpoints, "cost of checkpoints: interval, size of state, rate of change")
    grid.add_argument("--quick", action="store_true")
    grid.add_argument("--rounds", type=int, default=3)

    waits = command("latency-targets", _latency_targets, "what `latency_target` gives and costs (a table)")
    waits.add_argument("--targets", type=float, nargs="+", default=TargetSizes.targets_ms, help="ms (%(default)s)")
    waits.add_argument(
        "--rates", type=float, nargs="+", default=TargetSizes.rates, help="rows per second (%(default)s)"
    )
    waits.add_argument("--rounds", type=int, default=TargetSizes.rounds)
    waits.add_argument("--seconds", type=float, default=TargetSizes.seconds, help="measured per run, after the warm-up")
    waits.add_argument("--warm-up", type=float, default=TargetSizes.warm_up_s, help="seconds")
    waits.add_argument("--keys", type=int, default=TargetSizes.keys)

    grows = command("growth", _growth, "latency and cores while rate, keys or parallelism grows (a picture, tables)")
    grows.add_argument("--engine", action="append", help=f"again for each: {', '.join(ENGINES)}")
    for name, kind in (("rate", float), ("keys", int), ("parallelism", int)):
        values = "rates" if name == "rate" else name
        default = getattr(GrowthSizes, values)
        grows.add_argument(f"--{values}", type=kind, nargs="+", default=default, help="to grow to (%(default)s)")
        at = getattr(GrowthSizes, f"at_{name}")
        grows.add_argument(f"--at-{name}", type=kind, default=at, help="while another grows (%(default)s)")
    grows.add_argument("--rounds", type=int, default=GrowthSizes.rounds, help="engines take turns (%(default)s)")
    grows.add_argument("--seconds", type=float, default=GrowthSizes.seconds, help="measured per run, after the warm-up")
    grows.add_argument("--warm-up", type=float, default=GrowthSizes.warm_up_s, help="seconds")

    beside = command("real-time", _real_time, "Kafka to Kafka in milliseconds, under each guarantee (a table)")
    beside.add_argument("--add", action="store_true", help="to the results there are")
    beside.add_argument("--engine", action="append", choices=COLUMNS, help="again for each")
    beside.add_argument("--workload", action="append", choices=REAL_TIME, help="again for each")
    beside.add_argument("--rates", type=float, nargs="+", default=RealTimeSizes.rates, help="of all workloads")
    beside.add_argument(
        "--low-rates", type=float, nargs="*", default=RealTimeSizes.low_rates, help="of rtm-b; of kills"
    )
    beside.add_argument("--rounds", type=int, default=RealTimeSizes.rounds, help="engines take turns (%(default)s)")
    beside.add_argument("--seconds", type=float, default=RealTimeSizes.seconds, help="measured per run")
    beside.add_argument("--warm-up", type=float, default=RealTimeSizes.warm_up_s, help="seconds (%(default)s)")
    beside.add_argument("--kills", type=int, default=0, help="instead: SIGKILLs of each engine's program")
    beside.add_argument("--pause", type=float, default=10.0, help="seconds before each kill (%(default)s)")

    behind = command("backlog", _backlog, "catching up with stored rows, from Kafka and from files (a table)")
    behind.add_argument("--add", action="store_true", help="to the results there are")
    behind.add_argument("--engine", action="append", choices=ENGINES_OF_BACKLOGS, help="again for each")
    behind.add_argument("--source", action="append", choices=BacklogSizes.sources, help="again for each")
    behind.add_argument("--workload", action="append", choices=BACKLOGS, help="again for each")
    behind.add_argument("--rows", type=int, default=BacklogSizes.rows, help="%(default)s")
    behind.add_argument("--wide-rows", type=int, default=BacklogSizes.wide_rows, help="of 200 columns (%(default)s)")
    behind.add_argument("--rounds", type=int, default=BacklogSizes.rounds, help="engines take turns (%(default)s)")
    behind.add_argument("--parallelism", type=int, default=BacklogSizes.parallelism)

    targets = command("ends", _ends, "each target of ours: throughput, visible latency at short checkpoints (a table)")
    add_arguments(targets)

    late = command("slow-store", _slow_store, "a store that answers in 30 ms (a table)")
    slow_store.add_arguments(late)

    same = command("answers", _answers, "whether answers are those of Spark SQL, as a batch over the same events")
    same.add_argument("--engine", action="append", choices=["ours", "flink"], help="again for each; ours, unless told")
    same.add_argument("--workload", action="append", help="again for each; all of Nexmark, unless told")
    same.add_argument("--rows", type=int, default=1_000_000, help="events (%(default)s)")
    same.add_argument("--parallelism", type=int, default=2)

    auctions = command("nexmark", _nexmark, "Nexmark beside Flink SQL: rows/s, core-seconds, answers; a table")
    auctions.add_argument("--add", action="store_true", help="to the results there are")
    auctions.add_argument("--engine", action="append", choices=["ours", "flink"], help="again for each")
    auctions.add_argument("--workload", action="append", help="again for each; all of Nexmark, unless told")
    auctions.add_argument("--answers", type=int, default=NexmarkSizes.answers, help="events; 0: none (%(default)s)")
    auctions.add_argument("--rows", type=int, default=NexmarkSizes.rows, help="at most; 0: none (%(default)s)")
    auctions.add_argument("--rounds", type=int, default=NexmarkSizes.rounds, help="engines take turns (%(default)s)")
    auctions.add_argument("--parallelism", type=int, default=2)

    command("report", _report, "the report again, from results.json")
    command("flink-setup", _flink_setup, "Flink and PyFlink in a side environment (about 1 GB in the user's cache)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
