"""Who holds the cores that slots wait for: what the program has told, and what the daemon knows itself. Pure."""

from collections.abc import Mapping

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus, Room

_HOLDERS = 100  # that are kept
_NAME = 100  # characters of a name


def bounded(told: Room) -> Room:
    """Names come from unknown peers: short, and nothing in them that a terminal would act on."""
    largest = sorted(told.held_by.items(), key=lambda each: -each[1])[:_HOLDERS]
    return msgspec.structs.replace(told, held_by={_printable(name): cores for name, cores in largest})


def with_holders(status: JobStatus, jobs: Mapping[str, int]) -> JobStatus:
    """While slots are missing: `jobs` of this daemon hold so many cores, too, unless the program knows better."""
    if not status.missing_slots or status.outcome is not None:
        return status
    room = status.room or Room()
    others = {name: slots for name, slots in jobs.items() if slots and name != status.job}
    return msgspec.structs.replace(status, room=msgspec.structs.replace(room, held_by={**others, **room.held_by}))


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name[:_NAME])
