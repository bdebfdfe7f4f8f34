"""Hashes of Redis, a hash per key, that kill tests write; their reader, and the judge of such targets."""

from typing import Any

import redis as client

from tests.integration.ends.audit import Latest

PREFIX = "count:"


class Overwritten(Latest):
    """Judges rows that replays overwrite.

    A replay writes older rows again, so a key may go back for a while. Every value must have the right count, no key
    may vanish, and in the end all rows must have arrived.
    """

    def observe(self, where: str, seen: Any) -> None:
        self._reached = dict.fromkeys(self._reached, -1)
        super().observe(where, seen)


def look(url: str) -> dict[int, tuple[int, int]]:
    with client.Redis.from_url(url, decode_responses=True, socket_timeout=15) as database:
        keys = list(database.scan_iter(f"{PREFIX}*", count=1_000))
        pipe = database.pipeline(transaction=True)
        for key in keys:
            pipe.hgetall(key)
        rows = pipe.execute()
    names = [int(key.removeprefix(PREFIX)) for key in keys]
    return {name: (int(row["value"]), int(row["n"])) for name, row in zip(names, rows, strict=True)}
