"""Options as users set them: refusals, options in the flow, and the origin of values."""

from datetime import timedelta
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, LocalRunOptions
from barrier_runtime.state.errors import InvalidJob


def flow(**options: Any) -> Dataflow:
    made = Dataflow("options", **options)
    made.rate("numbers", 100_000, 10).sink("out", CollectSink())
    return made


def shown(made: Dataflow, **options: Any) -> dict[str, str]:
    """Returns from `explain`: option -> value and origin."""
    settings = made.explain(defaults=True, **options).partition("settings\n")[2].partition("\n\n")[0]
    return dict(line.strip().split(": ", 1) for line in settings.splitlines())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            {"paralelism": 3},
            r"unknown option paralelism \(did you mean parallelism\?\): the options are aligned_timeout, ",
        ),
        ({"parallelism": "2"}, "parallelism='2': give a whole number"),
        ({"parallelism": True}, "parallelism=True: give a whole number"),
        ({"parallelism": 0}, "parallelism=0: give a whole number from 1 to 1024"),
        ({"max_parallelism": 1}, r"max_parallelism=1: give a whole number from parallelism \(2\)"),
        ({"checkpoint_interval": "1s"}, "checkpoint_interval='1s': give a number of seconds"),
        ({"checkpoint_interval": 0}, "checkpoint_interval=0.0: give seconds from 0.01 to"),
        ({"checkpoint_timeout": float("nan")}, "checkpoint_timeout=nan: give a number of seconds"),
        ({"mode": "exactly-once"}, "mode='exactly-once': use 'exactly_once' or 'at_least_once' or 'at_most_once'"),
        ({"on_cancel": "keep"}, "on_cancel='keep': use 'retain' or 'delete'"),
        (
            {"restore": "newest"},
            "restore='newest': use 'latest', 'none', the number.*or a savepoint's URL or \\./folder",
        ),
        ({"state_backend": "rocks"}, "state_backend='rocks': use 'rocksdb' or 'memory'"),
        ({"restart_attempts": -1}, "restart_attempts=-1: give a whole number from 0 to 1000000, or None: no limit"),
        ({"restart": "fixed"}, "restart='fixed': use 'none' or 'fixed_delay' or 'exponential_delay' or 'failure_rate'"),
        ({"restart": "none", "restart_attempts": 3}, "restart_attempts=3 has no meaning with restart='none'"),
        ({"restart": "failure_rate", "restart_jitter": 0.1}, "restart_jitter=0.1 has no meaning .*'exponential_delay'"),
        ({"restart_failures": 3}, "restart_failures=3 has no meaning .* use restart='failure_rate'"),
        ({"restart_jitter": 2}, "restart_jitter=2.0: give a number from 0 to 1"),
        ({"restart_multiplier": "x"}, "restart_multiplier='x': give a number"),
        ({"restart_delay": -1}, "restart_delay=-1.0: give seconds from 0 to"),
        ({"restart_delay": 60}, "restart_delay=60 is above restart_max_delay=30: lower the one or raise the other"),
        ({"progress_timeout": 0}, "progress_timeout=0.0: give seconds from 0.1 to"),
        ({"checkpoint_interval": 5, "progress_timeout": 4}, "progress_timeout=4: give more than the time between two"),
        ({"retained": 0}, "retained=0: give a whole number from 1 to 1000"),
        ({"checkpoints": 5}, "checkpoints=5: give text, or None"),
        ({"spark_conf": ["a=b"]}, "spark_conf=.*: give a dict"),
        ({"unaligned": True, "max_concurrent": 2}, "unaligned does not go with max_concurrent = 2"),
        ({"aligned_timeout": 1}, "aligned_timeout=1.0 has no meaning without unaligned=True"),
        ({"spark": object(), "master": "local[2]"}, "master says how to make a Spark session, and spark= is one that"),
        ({"coordinator": "http://127.0.0.1:1"}, "coordinator= needs token_file="),
    ],
)
def test_an_option_that_cannot_be_right_is_named_with_what_can(option, said):
    with pytest.raises(InvalidJob, match=said):
        flow().explain(**option)


# ---------------------------------------------------------------- of the flow


def test_the_options_of_a_flow_hold_for_its_runs_unless_a_run_says_otherwise() -> None:
    made = flow(parallelism=3, retained=4)
    told = shown(made, parallelism=1)
    assert (told["parallelism"], told["retained"]) == ("1 [keyword]", "4 [Dataflow(…)]")
    assert made.run_local(parallelism=1).status.options["retained"] == 4


def test_a_run_may_switch_off_what_other_options_of_its_flow_are_about() -> None:
    made = flow(restart="fixed_delay", restart_attempts=5, unaligned=True, aligned_timeout=3)
    told = shown(made, restart="none", unaligned=False)
    assert told["restart_attempts"] == "not used with restart=none [Dataflow(…)]"
    assert told["aligned_timeout"] == "not used with unaligned=False [Dataflow(…)]"
    with pytest.raises(InvalidJob, match="restart_attempts=3 has no meaning with restart='none'"):
        made.explain(restart="none", restart_attempts=3)


def test_a_local_run_leaves_out_what_the_flow_says_of_spark() -> None:
    flow(master="spark://nowhere:1", coordinator_lease=5.0).run_local()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"paralelism": 3}, r"unknown option paralelism \(did you mean parallelism\?\)"),
        ({"parallelism": "3"}, "parallelism='3': give a whole number"),
    ],
)
def test_a_wrong_option_of_a_flow_is_refused_where_it_is_written(option: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        Dataflow("options", **option)


def test_options_may_be_kept_in_a_dict_with_a_type() -> None:
    options: LocalRunOptions = {"parallelism": 1, "checkpoint_interval": 0.5}
    flow().run_local(**options)


# ---------------------------------------------------------------- shown


def test_what_another_option_changes_is_shown_as_it_is_in_force() -> None:
    told = shown(flow(), checkpoint_interval=0.5, min_pause=2, max_concurrent=3)
    assert told["checkpoint_interval"] == "2 s [follows from min_pause; keyword: 0.5 s]"
    assert told["max_concurrent"] == "1 [follows from min_pause; keyword: 3]"
    assert told["progress_timeout"] == "60 s [default]"


def test_what_means_nothing_with_the_other_options_is_shown_so() -> None:
    told = shown(flow(), restart="failure_rate")
    assert told["restart"] == "failure_rate: 1 failure within 60 s, 1 s before each restart [keyword]"
    assert told["restart_delay"] == "1 s [default]"
    assert told["restart_attempts"] == "not used with restart=failure_rate [default]"
    assert told["aligned_timeout"] == "not used with unaligned=False [default]"


def test_times_are_seconds_or_a_timedelta() -> None:
    seconds = shown(flow(), checkpoint_interval=1.5, slot_timeout=30)
    assert shown(flow(), checkpoint_interval=timedelta(seconds=1.5), slot_timeout=timedelta(seconds=30)) == seconds
    with pytest.raises(InvalidJob, match=r"checkpoint_interval=0\.0: give seconds from 0.01 to"):
        flow().explain(checkpoint_interval=timedelta())
