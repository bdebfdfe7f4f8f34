"""Which operator chain holds a job up, from the shares of the last 10 s. Pure.

Chains of a slot share its loop, so a slot is at its limit when their busy shares add up to nearly one. What is looked
at, in this order:

| cause         | when                                                                                             |
|---------------|--------------------------------------------------------------------------------------------------|
| `server`      | a chain waits half of its time for a server                                                      |
| `skew`        | one slot is at its limit in a chain, and the others are far from it                              |
| `busy`        | the slots are at their limit: the chain with the largest share of that                           |
| `slow_output` | a chain waits for its receivers, and none of them is busy: the last one of those that do not wait|
| `input`       | nothing waits and nobody is busy: the sources bring no more                                      |
"""

from collections.abc import Sequence

from barrier_runtime.coordinator.status.status import ChainStatus
from barrier_runtime.coordinator.status.why.reason import Reason

_HELD = 0.5
_AT_LIMIT = 0.75  # of a slot's time: the rest goes to sockets, snapshots and messages
_WAITS = 0.1
_SKEWED = 2.0  # times the mean


def bottleneck(chains: Sequence[ChainStatus]) -> Reason | None:
    """None while the shares are not known (in the first seconds, or for a job that does not run)."""
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
            "a few keys have most of the rows: add a column to the key and aggregate in two steps; if the rows are "
            "spread evenly, look at that slot's machine",
        )
    if sum(chain.busy or 0.0 for chain in known) >= _AT_LIMIT:
        busy = max(known, key=lambda chain: chain.busy or 0.0)
        return Reason(
            "busy",
            f"{named(busy)} is the bottleneck: the slots are at their limit, and it takes {_percent(busy.busy)} of "
            "their time.",
            (*_shares(busy), *_waiting(known, busy)),
            "make this step cheaper (columns instead of rows, fewer calls per row), or raise the parallelism",
        )
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
            f"the busiest chain is busy {_percent(max(chain.busy or 0.0 for chain in known))} of the time",
        ),
        "if more rows wait at the source, look at the system that it reads from, and at the number of its partitions",
    )


def named(chain: ChainStatus) -> str:
    return f"`{' → '.join(chain.operators)}`"


def _skewed(chains: Sequence[ChainStatus]) -> ChainStatus | None:
    found = [
        chain
        for chain in chains
        if (chain.busiest or 0.0) >= _AT_LIMIT * 0.8 and (chain.busiest or 0.0) >= _SKEWED * 0.8 * (chain.busy or 0.0)
    ]
    return max(found, key=lambda chain: chain.busiest or 0.0, default=None)


def _slow_output(chains: Sequence[ChainStatus]) -> ChainStatus | None:
    """Of the chains that others wait for, and that do not wait themselves, the busiest."""
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
    shares = f"{known} in the last 10 s"
    if chain.rows_in_per_s is None:
        return (shares,)
    rows = f"{chain.rows_in_per_s:,.0f} rows/s"
    most = f", {chain.busiest_rows:.0%} of them in one slot" if chain.busiest_rows is not None else ""
    return (shares, rows + most)


def _waiting(chains: Sequence[ChainStatus], at: ChainStatus) -> tuple[str, ...]:
    """Chains before it that wait, near or far."""
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
