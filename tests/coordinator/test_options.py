"""Checkpoint options and job descriptions are checked once, with bounds in the message."""

import msgspec
import pytest
from coordinator_world import CHAINS, options, spec

from barrier_runtime.coordinator.log.records import Fence, decode_record, encode_record
from barrier_runtime.coordinator.option_table import CHECKPOINTS, OPTIONS, RESTARTS
from barrier_runtime.coordinator.options import (
    effective,
    validated,
    validated_restart,
    validated_spec,
)
from barrier_runtime.coordinator.wire.messages import ChainSpec, RestartOptions
from barrier_runtime.state.errors import InvalidJob


def bounded(options):
    return [option for option in options if option.field and option.low is not None]


@pytest.mark.parametrize("option", bounded(CHECKPOINTS), ids=lambda option: option.field)
def test_a_value_out_of_bounds_names_the_option_and_the_bounds(option):
    name, low, high = option.field, option.stored(option.low), option.stored(option.high)
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidJob, match=f"{name} = {value} .*{low} to {high}"):
            validated(options(**{name: value}))
    for value in (low, high):
        validated(options(**{name: value}))


def test_a_minimum_pause_makes_checkpoints_sequential():
    """C10: Flink's rule."""
    assert validated(options(min_pause_ms=1, max_concurrent=5)).max_concurrent == 1
    assert validated(options(min_pause_ms=0, max_concurrent=5)).max_concurrent == 5


def test_an_interval_shorter_than_the_minimum_pause_becomes_as_long():
    """C10: Flink's rule. The timeout is independent of both."""
    assert validated(options(interval_ms=100, min_pause_ms=500)).interval_ms == 500
    assert validated(options(interval_ms=900, min_pause_ms=500)).interval_ms == 900
    for timeout_ms in (10, 600_000):
        assert validated(options(interval_ms=1_000, timeout_ms=timeout_ms)).timeout_ms == timeout_ms


@pytest.mark.parametrize(("name", "value"), [("mode", "exactly-once"), ("on_cancel", "keep")])
def test_a_mode_that_does_not_exist_is_refused_with_those_that_do(name, value):
    with pytest.raises(InvalidJob, match=f"{name} = '{value}' is not known: use .* or "):
        validated(options(**{name: value}))


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize("option", bounded(RESTARTS), ids=lambda option: option.field)
def test_a_restart_value_out_of_bounds_names_the_option_and_the_bounds(option):
    name, low, high = option.field, option.stored(option.low), option.stored(option.high)
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidJob, match=rf"restart option {name} = .* use {low} to {high}"):
            validated_restart(RestartOptions(**{name: value}))


def test_restart_options_are_checked_and_made_plain():
    with pytest.raises(InvalidJob, match="strategy = 'sometimes' is not known: use none or fixed_delay"):
        validated_restart(RestartOptions(strategy="sometimes"))
    with pytest.raises(InvalidJob, match="initial_ms = 90000 is above max_ms = 30000"):
        validated_restart(RestartOptions(initial_ms=90_000))
    assert validated_restart(RestartOptions(strategy="fixed_delay", initial_ms=90_000)).initial_ms == 90_000
    assert validated_restart(RestartOptions(strategy="none", jitter=0.5, max_attempts=3)) == RestartOptions("none")


@pytest.mark.parametrize("strategy", OPTIONS["restart"].choices)
def test_the_restart_options_of_a_job_come_back_from_the_log_as_they_were(strategy):
    restart = validated_restart(RestartOptions(strategy, 250, 3.0, 9_000, 700, 5, 0.25, 4, 8_000))
    fence = Fence(
        put_id="a", parent_sha256="", token=1, writer="w", wall_ms=0, reason="r", restored_checkpoint=0, lineage="l",
        checkpoint_floor=0, spec=validated_spec(spec(restart=restart)),
    )  # fmt: skip
    data = encode_record(fence)
    read = decode_record("log/1", data)
    assert read.spec.restart == restart
    assert encode_record(read) == data
    assert validated_spec(read.spec) == read.spec, "checking what was checked changes nothing"


def test_a_record_without_the_newer_options_is_still_read():
    """A log that an earlier release wrote knows neither strategy nor watchdog."""
    old = msgspec.json.decode(msgspec.json.encode(spec()))
    old["restart"] = {
        "initial_ms": 200,
        "multiplier": 2.0,
        "max_ms": 30_000,
        "reset_after_ms": 1_000,
        "max_attempts": 7,
    }
    del old["progress_timeout_ms"]
    read = msgspec.convert(old, type(spec()))
    assert read.restart == RestartOptions("exponential_delay", max_attempts=7)
    assert validated_spec(read).progress_timeout_ms == 60_000


# ---------------------------------------------------------------- the watchdog


@pytest.mark.parametrize(("interval_ms", "timeout_ms"), [(1_000, 60_000), (6_000, 60_000), (30_000, 300_000)])
def test_the_progress_timeout_is_a_minute_or_ten_intervals(interval_ms, timeout_ms):
    assert validated_spec(spec(checkpoints=options(interval_ms=interval_ms))).progress_timeout_ms == timeout_ms


@pytest.mark.parametrize(
    ("given", "match"),
    [(99, "out of bounds: use 100 to"), (-1, "out of bounds"), (1_000, "every job would seem to stand")],
)
def test_a_progress_timeout_that_cannot_be_is_refused(given, match):
    with pytest.raises(InvalidJob, match=f"progress_timeout_ms = {given} .*{match}"):
        validated_spec(spec(progress_timeout_ms=given))
    assert validated_spec(spec(progress_timeout_ms=1_001)).progress_timeout_ms == 1_001


# ---------------------------------------------------------------- shown


def test_the_effective_values_are_shown():
    shown = effective(spec(checkpoints=options(min_pause_ms=10, max_concurrent=3)))
    assert shown["max_concurrent"] == 1
    assert shown["interval_ms"] == 1_000
    assert shown["mode"] == "exactly_once"
    assert shown["progress_timeout_ms"] == 60_000
    assert shown["restart"].startswith("exponential_delay: restarts without end, the first at once, then after 0.2 s")


@pytest.mark.parametrize(
    ("restart", "shown"),
    [
        (RestartOptions("none"), "none: the first failure ends the job"),
        (RestartOptions("fixed_delay", initial_ms=1_500, max_attempts=3), "fixed_delay: 3 restarts, 1.5 s before each"),
        (
            RestartOptions("failure_rate", initial_ms=1_000, max_failures=4, interval_ms=60_000),
            "failure_rate: 4 failures within 60 s, 1 s before each restart",
        ),
    ],
)
def test_a_restart_strategy_is_shown_with_what_it_uses_only(restart, shown):
    assert effective(spec(restart=restart))["restart"] == shown


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"job": "../x"}, "not allowed"),
        ({"run_id": "a b"}, "not allowed"),
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 200}, "parallelism"),
        ({"max_parallelism": 100_000}, "max_parallelism"),
        ({"chains": ()}, "no operator chain"),
        ({"restore": "newest"}, "restore"),
        ({"restore": "-1"}, "restore"),
        ({"slot_timeout_ms": 5}, "slot_timeout_ms"),
        ({"chains": (msgspec.structs.replace(CHAINS[1], chain=1),)}, "number chains"),
        (
            {
                "chains": (
                    ChainSpec(0, ("a", "count"), stateful=("count",)),
                    ChainSpec(1, ("count",), stateful=("count",)),
                )
            },
            "two operators",
        ),
        ({"chains": (ChainSpec(0, ("a",), stateful=("b",)),)}, "not in its chain"),
    ],
)
def test_an_unsound_job_is_refused_with_the_reason(changes, match):
    with pytest.raises(InvalidJob, match=match):
        validated_spec(spec(**changes))


def test_two_unnamed_stateless_steps_may_share_a_name():
    chains = (ChainSpec(0, ("read", "map", "map"), stateful=("read",), is_source=True),)
    assert validated_spec(spec(chains=chains)).chains == chains


# ---------------------------------------------------------------- unaligned checkpoints


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mode": "at_least_once"}, "unaligned does not go with mode = 'at_least_once'"),
        ({"max_concurrent": 2}, "unaligned does not go with max_concurrent = 2: .*use max_concurrent = 1"),
        ({"aligned_timeout_ms": -1}, "aligned_timeout_ms = -1 is out of bounds"),
    ],
)
def test_unaligned_checkpoints_are_for_exactly_once_jobs_one_at_a_time(changes, match):
    with pytest.raises(InvalidJob, match=match):
        validated(options(unaligned=True, **changes))


def test_a_minimum_pause_makes_unaligned_checkpoints_possible_with_any_concurrency():
    assert validated(options(unaligned=True, max_concurrent=3, min_pause_ms=5)).max_concurrent == 1


def test_checkpoints_are_aligned_unless_asked_for_and_a_timeout_means_nothing_then():
    assert not validated(options()).unaligned
    assert validated(options(aligned_timeout_ms=500)) == validated(options())
    assert effective(spec(checkpoints=options(unaligned=True, aligned_timeout_ms=None)))["aligned_timeout_ms"] is None
