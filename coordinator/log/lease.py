"""Lease of a job, judged without comparing clocks. For liveness only.

The lease protects a healthy leader when a slot loses the connection. A missing, damaged or wrong lease costs time,
never state.

Judgement of a lease (`LeaseWatch`)

| found                                  | judged   | a slot or a program that asks                      |
|----------------------------------------|----------|----------------------------------------------------|
| nothing, or a released lease           | FREE     | is served: the daemon takes the job over           |
| the daemon's name, also after a crash  | OURS     | is served at once                                  |
| another's, changed within the term     | HELD     | is sent to the leader                              |
| another's, unchanged for a whole term  | FREE     | is served                                          |
| something unreadable                   | as another's of our own term                                  |
| a lease of a newer release             | HELD     | waits: only that release knows for how long        |

Work of a leader every third of the term (`LeaseKeeper`)

| found                                             | slots                       | move        |
|---------------------------------------------------|-----------------------------|-------------|
| FREE, OURS, or HELD with a lower log position     | some, or none ever came     | write       |
| HELD with the same or a higher log position       | any                         | leave       |
| OURS, of another run with a higher position       | any                         | leave       |
| any                                               | none for a whole term       | let lapse   |

`position`: newest log record that the writer put, or intends to put. So a leader whose lease a predecessor overwrote
knows that the leader's record is newer.
"""

import enum
from dataclasses import dataclass
from typing import Annotated

import msgspec

from barrier_runtime.coordinator.option_table import DAEMON_OPTIONS
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.versioned import Format, VersionedDecoder

LEASE_VERSION = 1
MAX_LEASE_MS = round(DAEMON_OPTIONS["lease"].stored(DAEMON_OPTIONS["lease"].high))


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int = LEASE_VERSION
    job: str
    run_id: str
    leader: str  # daemon id, the same after a restart
    control: str  # "host:port" for slots
    http: str  # URL of the REST interface
    position: int
    sequence: int  # rises with every write, to change the content
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEASE_MS)]
    released: bool = False  # any daemon may lead at once


_ENCODER = msgspec.json.Encoder(order="deterministic")
_FORMAT = Format(
    "lease {}",
    LEASE_VERSION,
    damaged="delete it, the leader writes it anew",
    newer="run the same release in all daemons of one storage; if no newer one runs any more, delete it",
)
_DECODER = VersionedDecoder(_FORMAT, msgspec.json.Decoder(Lease))


def encode_lease(lease: Lease) -> bytes:
    return _ENCODER.encode(lease)


def decode_lease(name: str, data: bytes) -> Lease:
    return _DECODER.decode(data, name)


@dataclass(frozen=True)
class Holder:
    daemon: str
    control: str
    http: str
    lease_ms: int


class LeaseState(enum.Enum):
    FREE = "free"
    OURS = "ours"
    HELD = "held by another daemon"


@dataclass(frozen=True)
class Judgement:
    state: LeaseState
    lease: Lease | None = None  # None: missing or unreadable
    trouble: str = ""


class LeaseWatch:
    """A daemon's view of a job's lease, by the daemon's steady clock."""

    def __init__(self, name: str, holder: Holder) -> None:
        self._name = name
        self._holder = holder
        self._data: bytes | None = None
        self._since_ms: int | None = None  # first sight of the present content
        self._unsigned: tuple[str, int] | None = None  # a run without a lease, and the first sight of that

    def judge(self, data: bytes | None, asked_ms: int, answered_ms: int) -> Judgement:
        """`data` was read between these times.

        New content counts from the end of the read, unchanged content from the beginning: expiry is never early.
        """
        if self._since_ms is None or data != self._data:
            self._data, self._since_ms = data, answered_ms
        if data is None:
            return Judgement(LeaseState.FREE)
        try:
            lease, trouble = decode_lease(self._name, data), ""
        except InvalidJob as error:
            return Judgement(LeaseState.HELD, None, str(error))
        except Corrupt as error:
            lease, trouble = None, str(error)
        if lease is not None and lease.released:
            return Judgement(LeaseState.FREE, lease)
        if lease is not None and lease.leader == self._holder.daemon:
            return Judgement(LeaseState.OURS, lease)
        term_ms = self._holder.lease_ms if lease is None else lease.lease_ms
        expired = asked_ms - self._since_ms >= term_ms
        return Judgement(LeaseState.FREE if expired else LeaseState.HELD, lease, trouble)

    def may_take(self, found: Judgement, run_id: str, now_ms: int) -> bool:
        """Waits a whole term for a run without a lease, which may be starting at another daemon."""
        if found.state is LeaseState.HELD:
            return False
        if found.lease is not None and found.lease.run_id == run_id:
            return True
        if self._unsigned is None or self._unsigned[0] != run_id:
            self._unsigned = run_id, now_ms
        return now_ms - self._unsigned[1] >= self._holder.lease_ms


class LeaseKeeper:
    def __init__(self, holder: Holder, job: str, run_id: str) -> None:
        self._holder = holder
        self._job = job
        self._run_id = run_id
        self._sequence = 0
        self._slots_seen_ms: int | None = None  # None: no expected slot has connected yet
        self.displaced = False  # another lease has the same or a higher position

    def renewal(self, found: Judgement, position: int, slots: int, now_ms: int) -> Lease | None:
        """Lease to write now, or None. `slots`: number of connected slots."""
        if slots:
            self._slots_seen_ms = now_ms
        self.displaced = found.state is LeaseState.HELD and found.lease is not None and found.lease.position >= position
        if self.displaced or self._overtaken(found, position):
            return None
        if self._slots_seen_ms is not None and now_ms - self._slots_seen_ms >= self._holder.lease_ms:
            return None
        return self._lease(found, position)

    def release(self, found: Judgement, position: int) -> Lease | None:
        if found.state is not LeaseState.OURS or self._overtaken(found, position):
            return None
        if found.lease is not None and found.lease.position > position:
            return None  # of a later leadership of this daemon
        return msgspec.structs.replace(self._lease(found, position), released=True)

    def _overtaken(self, found: Judgement, position: int) -> bool:
        """Returns whether this daemon leads a newer run; the older runner learns that from the log."""
        lease = found.lease
        if found.state is not LeaseState.OURS or lease is None:
            return False
        return lease.run_id != self._run_id and lease.position > position

    def _lease(self, found: Judgement, position: int) -> Lease:
        known = 0 if found.lease is None else found.lease.sequence
        self._sequence = max(self._sequence, known) + 1
        return Lease(
            job=self._job,
            run_id=self._run_id,
            leader=self._holder.daemon,
            control=self._holder.control,
            http=self._holder.http,
            position=position,
            sequence=self._sequence,
            lease_ms=self._holder.lease_ms,
        )
