"""Fewer slots while cores are away, and the return to full width. Pure.

A job with the option `at_least` need not wait for slots that stay away. FENCE stores `JobSpec.parallelism`, the present
number of slots, and `JobSpec.full_parallelism`, to which the job returns (0: the present number).

| the job has | event                                                            | next | effect                      |
|-------------|------------------------------------------------------------------|------|-----------------------------|
| all, or few | slots missing for `degrade_after`, `at_least` are present        | few  | FENCE with as many slots    |
| all, or few | fewer than `at_least` are present, or the start is a first start | same | waits                       |
| all, or few | the coordinator stalled                                          | same | that time begins anew       |
| few         | the generation runs, and no other change is open                 | few  | requests a rescale to all   |
| few         | new slots are missing, or go                                     | few  | that rescale begins anew    |
| few         | that rescale failed, or the generation ended                     | few  | requests again later (+)    |
| few         | that rescale is done                                             | all  | -                           |
| all         | slots go again, and stay away                                    | few  | as above, but later (+)     |
| few         | a user rescales                                                  | all  | that is the new full width  |
| few         | a user replaces the program                                      | few  | the new program returns     |
| few         | a user takes a savepoint or stops the job                        | few  | as in any generation        |
| few         | another coordinator takes over, as the FENCE says                | few  | -                           |
| few         | the user's program is started again                              | all  | -                           |

(+) A return is requested `degrade_after` after the end of the last return, and twice as long after each further return
within 60 times `degrade_after`, up to 16 times as long: a slot that comes and goes must not move the job all the time.
The history keeps these ends for a successor.

Missing time is summed over all generations since the last that ran: a slot that dies during each restore stays away,
too. The last slot to go has a quarter of `degrade_after` at least.

The FENCE restores the newest checkpoint, as after any failure. Slots beyond the new number leave, so that Spark can
give their cores to missing slots below that number. Design: docs/design/rescaling.md.
"""

from collections.abc import Sequence

import msgspec

from barrier_runtime.coordinator.job.rescaling import RETURN, RescaleRequest
from barrier_runtime.coordinator.status.health import some_of
from barrier_runtime.coordinator.status.status import AbsentSlot
from barrier_runtime.coordinator.wire.messages import JobSpec

_TIMEOUT_MS = 60_000  # of a return, once all new slots are there
_RECENT, _LONGEST = 60, 16  # times `degrade_after`


def full_width(spec: JobSpec) -> int:
    return spec.full_parallelism or spec.parallelism


def is_narrow(spec: JobSpec) -> bool:
    return spec.parallelism < full_width(spec)


def narrowed(spec: JobSpec, present: int, absences: Sequence[AbsentSlot] = ()) -> JobSpec | None:
    """Returns the job with `present` slots, without `absences`; None if the job waits for more."""
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
    """Returns the request for full width, if due. `ends_ms`: of earlier returns."""
    if not is_narrow(spec) or now_ms < _due_ms(spec.degrade_after_ms, ends_ms, now_ms):
        return None
    return RescaleRequest(f"{RETURN}{token}-{now_ms}", full_width(spec), _TIMEOUT_MS)


def _due_ms(degrade_after_ms: int, ends_ms: Sequence[int], now_ms: int) -> int:
    recent = [ended_ms for ended_ms in ends_ms if ended_ms > now_ms - _RECENT * degrade_after_ms]
    if not recent:
        return now_ms
    return max(recent) + degrade_after_ms * min(1 << (len(recent) - 1), _LONGEST)


def shown(spec: JobSpec) -> str:
    """Returns text on a job with fewer slots; "" at full width."""
    if not is_narrow(spec):
        return ""
    without = f" without {spec.narrow_because}" if spec.narrow_because else ""
    return f"{spec.parallelism} of {full_width(spec)} slots{without}, until there are cores for all"
