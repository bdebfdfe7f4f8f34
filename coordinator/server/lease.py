"""A job's lease: which daemon is expected to lead it, judged without comparing clocks. For liveness only.

The decision log alone decides who leads. The lease keeps a standby from fencing a healthy leader because one slot lost
its connection. It is one object that the leader writes anew every third of its term; nobody has to write it, and a
lost, damaged or lying one costs time, never state. A daemon measures the silence of another with its own steady clock,
from when it first saw the present content.

What a daemon finds (`LeaseWatch`)

| found                                  | judged   | a slot or a program that asks                      |
|----------------------------------------|----------|----------------------------------------------------|
| nothing, or a released lease           | FREE     | is served: the daemon takes the job over           |
| its own name, also from before a crash | OURS     | is served at once                                  |
| another's, changed within its term     | HELD     | is sent to the leader                              |
| another's, unchanged for a whole term  | FREE     | is served                                          |
| something unreadable                   | as another's of our own term                                  |
| one that a newer release wrote         | HELD     | waits: only that release knows for how long        |

A run that the log names and no lease may just be starting at another daemon, whose first lease follows its FENCE: it is
taken over only after it was seen so for a whole term of our own (`may_take`).

What a leader does every third of the term (`LeaseKeeper`)

| found                                             | slots                       | move        |
|---------------------------------------------------|-----------------------------|-------------|
| FREE, OURS, or HELD with a lower log position     | some, or none came ever yet | write       |
| HELD with the same or a higher log position       | any                         | leave it    |
| OURS, of another run with a higher position       | any                         | leave it    |
| any                                               | none for a whole term       | let it lapse|

`position` is the newest log record that the writer put (or wants to put): positions are totally ordered, so a leader
that was overwritten by its predecessor's last put knows that it is the newer one.
"""

import enum
from dataclasses import dataclass

import msgspec

from barrier_runtime.coordinator.log.lease_record import Lease, decode_lease
from barrier_runtime.state.errors import Corrupt, InvalidJob


@dataclass(frozen=True)
class Holder:
    """A daemon as it signs its leases."""

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
    lease: Lease | None = None  # None: there is none, or it can't be read
    trouble: str = ""  # why it can't be read


class LeaseWatch:
    """What one daemon makes of the lease of one job. All times are of its own steady clock."""

    def __init__(self, name: str, holder: Holder) -> None:
        self._name = name
        self._holder = holder
        self._data: bytes | None = None
        self._since_ms: int | None = None  # when the present content was seen first
        self._unsigned: tuple[str, int] | None = None  # a run that no lease names, and when it was seen first

    def judge(self, data: bytes | None, asked_ms: int, answered_ms: int) -> Judgement:
        """`data`: what a read that began and ended at these times found. Both count against us: content is new from
        the end of the read that found it, and unchanged up to the beginning of the last one."""
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
        """Whether run `run_id`, the newest one in the log, may be taken over after what was found."""
        if found.state is LeaseState.HELD:
            return False
        if found.lease is not None and found.lease.run_id == run_id:
            return True
        if self._unsigned is None or self._unsigned[0] != run_id:
            self._unsigned = run_id, now_ms
        return now_ms - self._unsigned[1] >= self._holder.lease_ms


class LeaseKeeper:
    """What the leader of one run writes, and when it stops writing."""

    def __init__(self, holder: Holder, job: str, run_id: str) -> None:
        self._holder = holder
        self._job = job
        self._run_id = run_id
        self._sequence = 0
        self._slots_seen_ms: int | None = None  # None: none has come yet, they are expected
        self.displaced = False  # another daemon signs with the same or a higher position

    def renewal(self, found: Judgement, position: int, slots: int, now_ms: int) -> Lease | None:
        """The lease to write now. `position`: see above; `slots`: how many are connected. None: write nothing."""
        if slots:
            self._slots_seen_ms = now_ms
        self.displaced = found.state is LeaseState.HELD and found.lease is not None and found.lease.position >= position
        if self.displaced or self._overtaken(found, position):
            return None
        if self._slots_seen_ms is not None and now_ms - self._slots_seen_ms >= self._holder.lease_ms:
            return None
        return self._lease(found, position)

    def release(self, found: Judgement, position: int) -> Lease | None:
        """Given back, if it is ours to give."""
        if found.state is not LeaseState.OURS or self._overtaken(found, position):
            return None
        if found.lease is not None and found.lease.position > position:
            return None  # signed anew for a later leadership of this daemon
        return msgspec.structs.replace(self._lease(found, position), released=True)

    def _overtaken(self, found: Judgement, position: int) -> bool:
        """The same daemon leads a newer run of the job by now; ours will hear of that from the log."""
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
