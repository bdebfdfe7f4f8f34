"""Slots of a pair that stays apart: a slot of the pair is requested on another host. `job/links` has the states."""

from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.links import victim
from barrier_runtime.coordinator.status.status import SilentLink


def move_if_apart(job: Job, links: tuple[SilentLink, ...], now_ms: int) -> None:
    """Records failures of links; requests another host for a slot of a pair that failed before."""
    moving = {kill.uuid for kill in job.slots.kills}
    for link in links:
        pair = {slot.uuid for slot in (job.slots.at(link.slot), job.slots.at(link.peer)) if slot is not None}
        if job.links.failed(job.slots, link, now_ms) and not pair & moving:
            slot = victim(job.slots, link)
            if slot is not None:
                job.outbox.put(job.slots.want_moved(slot))
                moving.add(slot.uuid)
