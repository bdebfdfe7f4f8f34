"""Operator chain that limits a job, from the shares of the last 10 s. Pure.

Causes, in the order of the checks:

| cause         | when                                                                                             |
|---------------|--------------------------------------------------------------------------------------------------|
| `server`      | a chain waits half of the time for a server                                                      |
| `skew`        | a slot is at the limit in a chain, and the others are far from that                              |
| `starved`     | the slots are at their limit only because they wait for a processor much of their time           |
| `busy`        | the slots are at their limit: the chain that takes most of their time, or all of them together   |
| `slow_output` | a chain waits for receivers though no slot is at its limit: the receiver that does not wait      |
| `input`       | nothing waits and nobody is busy: the sources bring no more                                      |

The chains of a slot share a loop, so an idle chain proves nothing: another chain may hold the loop.
"""

from collections.abc import Sequence

from barrier_runtime.coordinator.status.status import ChainStatus
from barrier_runtime.coordinator.status.why.reason import SKEWED_SOURCE_REMEDY, Reason

_HELD = 0.5
_AT_LIMIT = 0.75  # of a slot's time, when a chain waits: sockets, snapshots and messages take the rest
_FULL = 0.9  # of a slot's time, when no chain waits
_MOST = 0.5  # of all chains' time, to name a single step
_STARVED = 0.2
_NAMED = 4
_WAITS = 0.1
_SKEWED = 2.0  # times the mean


def bottleneck(chains: Sequence[ChainStatus]) -> Reason | None:
    """None while the shares are unknown (first seconds, or no running job)."""
    known = [chain for chain in chains if chain.busy is not None]
    if not known:
        return None
    held = max(known, key=lambda chain: chain.held or 0.0)
    if (held.held or 0.0) >= _HELD:
        return Reason(
            "server",
            f"{named(held)} is the bottleneck: it waits for a server {_percent(held.held)} of the time.",
            (*_shares(held), *_waiting(known, held)),
            "look at the server that this step asks or writes to; allow it more requests at once if it can take them",
        )
    skewed = _skewed(known)
    if skewed is not None:
        return Reason(
            "skew",
            f"{named(skewed)} is the bottleneck in slot {skewed.busiest_slot} alone: it is busy there "
            f"{_percent(skewed.busiest)} of the time, {_percent(skewed.busy)} in all slots.",
            (*_shares(skewed), *_waiting(known, skewed)),
            SKEWED_SOURCE_REMEDY
            if skewed.is_source
            else "a few keys have most of the rows: add a column to the key and aggregate in two steps; if the rows "
            "are spread evenly, look at that slot's machine",
        )
    if _at_limit(known):
        return _starved(known) or _busy(known)
    slow = _slow_output(known)
    if slow is not None:
        return Reason(
            "slow_output",
            f"{named(slow)} is the bottleneck: what sends to it has no room, although no slot is at its limit.",
            (*_shares(slow), *_waiting(known, slow)),
            "the step waits for something outside of its slot's loop: look at its target, and at the network between "
            "slots",
        )
    sources = [chain for chain in known if chain.is_source]
    rates = ", ".join(f"{chain.operators[0]} {chain.rows_in_per_s or 0.0:,.0f} rows/s" for chain in sources)
    return Reason(
        "input",
        "No step holds the job up: it processes what its sources bring.",
        (
            f"sources: {rates}",
            f"the slots work {_percent(_worked(known))} of the time, "
            f"{_percent(max(chain.busy or 0.0 for chain in known))} in the busiest chain",
        ),
        "if more rows wait at the source, look at the system that it reads from, and at the number of its partitions",
    )


def named(chain: ChainStatus) -> str:
    return f"`{' → '.join(chain.operators)}`"


def _worked(chains: Sequence[ChainStatus]) -> float:
    return min(1.0, sum(chain.busy or 0.0 for chain in chains))


def _at_limit(chains: Sequence[ChainStatus]) -> bool:
    waits = any((chain.backpressured or 0.0) >= _WAITS for chain in chains)
    return _worked(chains) >= (_AT_LIMIT if waits else _FULL)


def _starved(chains: Sequence[ChainStatus]) -> Reason | None:
    """A step that waits for a processor counts as busy."""
    starved = max(chain.starved or 0.0 for chain in chains)
    if starved < _STARVED or _worked(chains) - starved >= _AT_LIMIT:
        return None
    return Reason(
        "starved",
        f"The slots' machines are the bottleneck: the slots are ready to run and get no processor {_percent(starved)} "
        "of the time.",
        (_taken(chains), "the time in which a step waits for a processor counts as work of the step"),
        "other processes use these processors: move them or the slots elsewhere, or give the slots more processors",
    )


def _busy(chains: Sequence[ChainStatus]) -> Reason:
    most = max(chains, key=lambda chain: chain.busy or 0.0)
    worked = _percent(_worked(chains))
    if (most.busy or 0.0) < _MOST * _worked(chains):
        return Reason(
            "busy",
            f"No single step is the bottleneck: the slots work {worked} of their time, and no step takes half of that.",
            (_taken(chains), *_waiting(chains, most)),
            "raise the parallelism, with a processor for each slot",
        )
    return Reason(
        "busy",
        f"{named(most)} is the bottleneck: the slots work {worked} of their time, and it takes {_percent(most.busy)}.",
        (_taken(chains), *_rows(most), *_waiting(chains, most)),
        "make this step cheaper (columns instead of rows, fewer calls per row), or raise the parallelism",
    )


def _taken(chains: Sequence[ChainStatus]) -> str:
    ordered = sorted(chains, key=lambda chain: chain.busy or 0.0, reverse=True)
    parts = [f"{named(chain)} {_percent(chain.busy)}" for chain in ordered[:_NAMED]]
    more = f", {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"of the slots' time in the last 10 s: {', '.join(parts)}{more}"


def _skewed(chains: Sequence[ChainStatus]) -> ChainStatus | None:
    found = [
        chain
        for chain in chains
        if (chain.busiest or 0.0) >= _AT_LIMIT * 0.8 and (chain.busiest or 0.0) >= _SKEWED * 0.8 * (chain.busy or 0.0)
    ]
    return max(found, key=lambda chain: chain.busiest or 0.0, default=None)


def _slow_output(chains: Sequence[ChainStatus]) -> ChainStatus | None:
    waiting = {chain.chain for chain in chains if (chain.backpressured or 0.0) >= _WAITS}
    ends = [chain for chain in chains if chain.chain not in waiting and waiting & set(chain.inputs)]
    return max(ends, key=lambda chain: chain.busy or 0.0, default=None)


def _shares(chain: ChainStatus) -> tuple[str, ...]:
    parts = {
        "busy": chain.busy,
        "waits for receivers": chain.backpressured,
        "waits for servers": chain.held,
        "idle": chain.idle,
    }
    known = ", ".join(f"{name} {share:.0%}" for name, share in parts.items() if share is not None)
    return (f"{known} in the last 10 s", *_rows(chain))


def _rows(chain: ChainStatus) -> tuple[str, ...]:
    if chain.rows_in_per_s is None:
        return ()
    most = f", {chain.busiest_rows:.0%} of them in one slot" if chain.busiest_rows is not None else ""
    return (f"{chain.rows_in_per_s:,.0f} rows/s{most}",)


def _waiting(chains: Sequence[ChainStatus], at: ChainStatus) -> tuple[str, ...]:
    before, reached = set(at.inputs), set[int]()
    by_number = {chain.chain: chain for chain in chains}
    while before:
        number = before.pop()
        if number in by_number and number not in reached:
            reached.add(number)
            before |= set(by_number[number].inputs)
    waits = [by_number[number] for number in sorted(reached) if (by_number[number].backpressured or 0.0) >= _WAITS]
    return tuple(
        f"{named(chain)} waits for its receivers {_percent(chain.backpressured)} of the time" for chain in waits
    )


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
