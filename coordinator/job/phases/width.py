"""Fewer slots while cores are away (`at_least`), and the return to full width. Pure.
States and moves: docs/design/rescaling-events.md.
"""

from collections.abc import Sequence

import msgspec

from barrier_runtime.coordinator.job.rescaling import RETURN, RescaleRequest
from barrier_runtime.coordinator.status.health import some_of
from barrier_runtime.coordinator.status.status import AbsentSlot
from barrier_runtime.coordinator.wire.messages import JobSpec

_TIMEOUT_MS = 60_000  # of a return, once all new slots are registered
_RECENT, _LONGEST = 60, 16  # times `degrade_after`


def full_width(spec: JobSpec) -> int:
    return spec.full_parallelism or spec.parallelism


def is_narrow(spec: JobSpec) -> bool:
    return spec.parallelism < full_width(spec)


def narrowed(spec: JobSpec, present: int, absences: Sequence[AbsentSlot] = ()) -> JobSpec | None:
    """Returns None if the job waits for more slots."""
    if spec.at_least is None or not max(1, spec.at_least) <= present < spec.parallelism:
        return None
    return msgspec.structs.replace(
        spec, parallelism=present, full_parallelism=full_width(spec), narrow_because=_by_host(absences)
    )


def _by_host(absences: Sequence[AbsentSlot]) -> str:
    hosts: dict[str, list[str]] = {}
    for each in absences:
        hosts.setdefault(each.host, []).append(str(each.slot))
    texts = [
        f"slot{'s' if len(slots) > 1 else ''} {some_of(slots, ', ')}{f' of host {host}' if host else ''}"
        for host, slots in hosts.items()
    ]
    return some_of(texts, ", ")


def widening(spec: JobSpec, token: int, ends_ms: Sequence[int], now_ms: int) -> RescaleRequest | None:
    """Request for full width, if due. `ends_ms`: of earlier returns."""
    if not is_narrow(spec) or now_ms < _due_ms(spec.degrade_after_ms, ends_ms, now_ms):
        return None
    return RescaleRequest(f"{RETURN}{token}-{now_ms}", full_width(spec), _TIMEOUT_MS)


def _due_ms(degrade_after_ms: int, ends_ms: Sequence[int], now_ms: int) -> int:
    recent = [ended_ms for ended_ms in ends_ms if ended_ms > now_ms - _RECENT * degrade_after_ms]
    if not recent:
        return now_ms
    return max(recent) + degrade_after_ms * min(1 << (len(recent) - 1), _LONGEST)


def shown(spec: JobSpec) -> str:
    if not is_narrow(spec):
        return ""
    without = f" without {spec.narrow_because}" if spec.narrow_because else ""
    return f"{spec.parallelism} of {full_width(spec)} slots{without}, until there are cores for all"
