"""The bottleneck is named in six topologies, from shares reported by slots."""

import pytest

from barrier_runtime.coordinator.status.status import ChainStatus
from barrier_runtime.coordinator.status.why.bottleneck import bottleneck


def chain(number: int, name: str, *inputs: int, busy: float, blocked: float = 0.0, held: float = 0.0, **more):
    shares = {"busiest": busy, "busiest_slot": 0, "rows_in_per_s": 1_000.0, "is_source": not inputs, **more}
    idle = max(0.0, 1 - busy - blocked - held)
    return ChainStatus(
        chain=number,
        operators=(name,),
        inputs=inputs,
        busy=busy,
        backpressured=blocked,
        held=held,
        idle=idle,
        **shares,
    )


CHAIN = (
    chain(0, "source", busy=0.05, blocked=0.9),
    chain(1, "count", 0, busy=0.88),
    chain(2, "out", 1, busy=0.03, sinks=("out",)),
)
DIAMOND = (
    chain(0, "source", busy=0.05, blocked=0.7),
    chain(1, "quick", 0, busy=0.04),
    chain(2, "slow", 0, busy=0.8),
    chain(3, "join", 1, 2, busy=0.05),
)
JOIN = (
    chain(0, "orders", busy=0.1),
    chain(1, "payments", busy=0.1, blocked=0.6),
    chain(2, "enrich", 1, busy=0.7),
    chain(3, "join", 0, 2, busy=0.05),
)
SKEWED = (
    chain(0, "source", busy=0.05, blocked=0.4),
    chain(1, "count", 0, busy=0.25, busiest=0.9, busiest_slot=3, busiest_rows=0.92),
    chain(2, "out", 1, busy=0.02),
)
SLOW_SINK = (
    chain(0, "source", busy=0.02, blocked=0.8),
    chain(1, "count", 0, busy=0.05, blocked=0.9),
    chain(2, "out", 1, busy=0.03, held=0.95, sinks=("out",)),
)
# On a loaded machine each step takes longer because it waits for a processor.
STARVED = (
    chain(0, "source", busy=0.38, blocked=0.2, starved=0.4),
    chain(1, "count", 0, busy=0.33, starved=0.4),
    chain(2, "out", 1, busy=0.15, starved=0.4),
)
MANY = tuple(chain(at, f"step{at}", *([at - 1] if at else []), busy=0.16, blocked=0.3) for at in range(6))
NEARLY = (chain(0, "source", busy=0.38), chain(1, "count", 0, busy=0.3), chain(2, "out", 1, busy=0.1))
INPUT_BOUND = (chain(0, "source", busy=0.04), chain(1, "count", 0, busy=0.1), chain(2, "out", 1, busy=0.02))


@pytest.mark.parametrize(
    ("chains", "cause", "named"),
    [
        pytest.param(CHAIN, "busy", "`count`", id="chain"),
        pytest.param(DIAMOND, "busy", "`slow`", id="diamond"),
        pytest.param(JOIN, "busy", "`enrich`", id="join with one slow side"),
        pytest.param(SKEWED, "skew", "`count`", id="skewed subtask"),
        pytest.param(SLOW_SINK, "server", "`out`", id="slow sink"),
        pytest.param(STARVED, "starved", "The slots' machines", id="no processor"),
        pytest.param(MANY, "busy", "No single step", id="six steps that share the time"),
        pytest.param(NEARLY, "input", "No step", id="busy for most of the time, and nobody waits"),
        pytest.param(INPUT_BOUND, "input", "No step", id="input-bound"),
    ],
)
def test_the_bottleneck_of_a_topology(chains: tuple[ChainStatus, ...], cause: str, named: str) -> None:
    reason = bottleneck(chains)
    assert reason is not None
    assert reason.cause == cause
    assert reason.sentence.startswith(named)
    assert reason.remedy


@pytest.mark.parametrize(
    ("busy", "waits", "starved", "cause", "named"),
    [
        # the slots' whole time; somebody waits; what they lack a processor for
        ((0.38, 0.37), 0.0, 0.0, "input", "No step"),
        ((0.38, 0.37), 0.2, 0.0, "busy", "`b`"),  # of 75 %, `b` has half
        ((0.38, 0.38), 0.2, 0.5, "starved", "The slots' machines"),
        ((0.1, 0.88), 0.0, 0.0, "busy", "`c`"),
        ((0.1, 0.88), 0.9, 0.19, "busy", "`c`"),  # a little is usual
        ((0.1, 0.88), 0.9, 0.21, "busy", "`c`"),  # at the limit by the processor's time, too: 77 %
        ((0.1, 0.88), 0.9, 0.25, "starved", "The slots' machines"),
        ((0.1, 0.1), 0.0, 0.6, "input", "No step"),
    ],
)
def test_slots_are_at_their_limit_only_by_work(
    busy: tuple[float, float], waits: float, starved: float, cause: str, named: str
) -> None:
    chains = (
        chain(0, "b", busy=busy[0], blocked=waits, starved=starved),
        chain(1, "c", 0, busy=busy[1], starved=starved),
    )
    reason = bottleneck(chains)
    assert reason is not None
    assert (reason.cause, reason.sentence.startswith(named)) == (cause, True), reason


def test_slots_at_their_limit_are_never_told_beside_idle_time() -> None:
    for chains in (CHAIN, DIAMOND, JOIN, STARVED, MANY):
        reason = bottleneck(chains)
        assert reason is not None
        assert not any("idle" in each for each in reason.evidence), reason
    told = bottleneck(CHAIN)
    assert told is not None
    assert told.sentence == "`count` is the bottleneck: the slots work 96% of their time, and it takes 88%."
    assert told.evidence[0] == "of the slots' time in the last 10 s: `count` 88%, `source` 5%, `out` 3%"


def test_who_waits_for_the_bottleneck_is_evidence_however_far_before_it() -> None:
    reason = bottleneck(SLOW_SINK)
    assert reason is not None
    assert "`source` waits for its receivers 80% of the time" in reason.evidence
    assert "`count` waits for its receivers 90% of the time" in reason.evidence


def test_the_slot_and_its_share_of_the_rows_are_told_of_a_skewed_chain() -> None:
    reason = bottleneck(SKEWED)
    assert reason is not None
    assert "in slot 3 alone" in reason.sentence
    assert any("92% of them in one slot" in each for each in reason.evidence)


def test_a_receiver_that_neither_works_nor_waits_is_slow_outside_of_its_loop() -> None:
    chains = (chain(0, "source", busy=0.02, blocked=0.6), chain(1, "out", 0, busy=0.1, sinks=("out",)))
    reason = bottleneck(chains)
    assert reason is not None
    assert (reason.cause, reason.sentence.startswith("`out`")) == ("slow_output", True)


def test_a_slow_step_in_the_sources_own_chain_is_the_bottleneck_itself() -> None:
    reason = bottleneck((chain(0, "source", busy=0.93), chain(1, "out", 0, busy=0.02)))
    assert reason is not None
    assert (reason.cause, reason.sentence.startswith("`source`")) == ("busy", True)


def test_without_shares_nothing_is_said() -> None:
    assert bottleneck(()) is None
    assert bottleneck((ChainStatus(chain=0, operators=("source",)),)) is None


def test_a_chain_whose_sender_is_unknown_and_a_circle_of_inputs_end() -> None:
    chains = (chain(0, "a", 1, busy=0.5, blocked=0.5), chain(1, "b", 0, 9, busy=0.4))
    assert bottleneck(chains) is not None


def test_a_source_with_few_splits_is_skewed_by_its_splits_not_by_keys() -> None:
    """For example a topic of a single partition."""
    reason = bottleneck((chain(0, "source", busy=0.25, busiest=0.95), chain(1, "out", 0, busy=0.02)))
    assert reason is not None
    assert (reason.cause, "splits" in reason.remedy, "key" in reason.remedy) == ("skew", True, False), reason
