"""Checkpoint options and job descriptions are checked once, with bounds in the message."""

import msgspec
import pytest
from coordinator_world import CHAINS, options, spec

from coordinator.messages import ChainSpec
from coordinator.options import BOUNDS, effective, validated, validated_spec
from state.errors import InvalidJob


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_a_value_out_of_bounds_names_the_option_and_the_bounds(name):
    bound = BOUNDS[name]
    for value in (bound.low - 1, bound.high + 1):
        with pytest.raises(InvalidJob, match=f"{name} = {value} .*{bound.low} to {bound.high}"):
            validated(options(**{name: value}))
    for value in (bound.low, bound.high):
        validated(options(**{name: value}))


def test_a_minimum_pause_makes_checkpoints_sequential():
    """C10: Flink's rule."""
    assert validated(options(min_pause_ms=1, max_concurrent=5)).max_concurrent == 1
    assert validated(options(min_pause_ms=0, max_concurrent=5)).max_concurrent == 5


def test_the_effective_values_are_shown():
    shown = effective(options(min_pause_ms=10, max_concurrent=3))
    assert shown["max_concurrent"] == 1
    assert shown["interval_ms"] == 1_000
    assert shown["mode"] == "exactly_once"


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
