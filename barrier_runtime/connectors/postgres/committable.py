"""What the PostgreSQL sink needs to finish one transaction from any process, and the names that it goes by.

A *staged* transaction is a batch: rows of the table `barrier_runtime.staged` under one name. A *prepared* one is a
transaction of the server's own, under a global identifier (gid). Both names begin anew with every incarnation of a
sink (random, drawn when it opens), so no two incarnations ever meet in a name.

What was left over may be dropped only by those who know what is decided: orphans of older fencing tokens of the same
lineage, or of the same checkpoint store (whose tokens rise over all lineages).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from barrier_runtime.connectors.committable import committable_format
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.versioned import VersionedDecoder

COMMITTABLE_VERSION = 1
Transactions = Literal["staged", "prepared"]
_GID = re.compile(
    r"barrier_runtime:(?P<owner>[0-9a-f]{16}):(?P<store>[0-9a-f]{16}):(?P<lineage>[0-9a-f]{16}):"
    r"(?P<token>\d+):(?P<subtask>\d+):(?P<checkpoint>\d+):[0-9a-z]+:[a-z0-9-]+",
    re.ASCII,
)


class PostgresCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    transactions: Transactions
    job: str
    sink: str
    lineage: str
    token: int
    subtask: int  # who wrote it
    checkpoint: int  # the barrier that closed it
    target: str  # schema.table
    columns: tuple[str, ...]  # of the target, in the order of the values
    name: str  # of the batch, or the gid
    sizes: tuple[int, ...]  # bytes of its parts, in the order of their rows
    rows: int


_DECODER = VersionedDecoder(committable_format(COMMITTABLE_VERSION), msgspec.json.Decoder(PostgresCommittable))


@dataclass(frozen=True)
class Names:
    """Names that one sink subtask gives in one incarnation. `store`: url of the job's checkpoint store."""

    job: str
    sink: str
    lineage: str
    store: str
    token: int
    subtask: int
    incarnation: str

    @property
    def store_digest(self) -> str:
        return digest(self.store)

    def batch(self, number: int) -> str:
        """`number` counts the transactions of this incarnation."""
        return f"{self.token}-{self.subtask}-{self.incarnation}-{number}"

    def gid(self, checkpoint: int) -> str:
        """At most 200 bytes, as PostgreSQL wants it; ends with the job's name, for people."""
        owner, store, lineage = digest(self.job, self.sink), digest(self.store), digest(self.lineage)
        place = f"{self.token}:{self.subtask}:{checkpoint}"
        return f"barrier_runtime:{owner}:{store}:{lineage}:{place}:{self.incarnation}:{self.job}"

    @property
    def gid_prefix(self) -> str:
        """Of every prepared transaction of this job and sink."""
        return f"barrier_runtime:{digest(self.job, self.sink)}:"

    def is_orphan(self, gid: str, parallelism: int) -> bool:
        """Was it prepared under an older token, by a subtask whose committables are ours to finish?"""
        match = _GID.fullmatch(gid)
        return (
            match is not None
            and match["owner"] == digest(self.job, self.sink)
            and (match["store"] == digest(self.store) or match["lineage"] == digest(self.lineage))
            and int(match["token"]) < self.token
            and int(match["subtask"]) % parallelism == self.subtask
        )


def digest(*parts: str) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def encode_committable(committable: PostgresCommittable) -> bytes:
    return msgspec.json.encode(committable)


def decode_committable(
    data: bytes, job: str, sink: str, transactions: Transactions, target: str, where: str
) -> PostgresCommittable:
    """Decode what `encode_committable` made for this job, sink and target; anything else is refused."""
    committable = _DECODER.decode(data, where)
    if (committable.job, committable.sink) != (job, sink) or not _is_ours(committable):
        raise Corrupt(
            f"{where}: a committable names {committable.name[:200]!r} of job {committable.job[:64]!r}, sink "
            f"{committable.sink[:64]!r}, which this sink did not make: nothing was committed or deleted; restore an "
            "intact copy of the checkpoint"
        )
    if (committable.transactions, committable.target) != (transactions, target):
        raise InvalidJob(
            f"{where}: checkpoint {committable.checkpoint} decided {committable.rows} rows for table "
            f"{committable.target} with transactions={committable.transactions!r}; the sink now has {target} and "
            f"transactions={transactions!r}: run the job once more with the old settings, or settle them with "
            "'barrier-runtime transactions', then change"
        )
    return committable


def _is_ours(committable: PostgresCommittable) -> bool:
    """Does its name agree with everything else that it says?"""
    origin = f"{committable.token}-{committable.subtask}-"
    if committable.transactions == "staged":
        return re.fullmatch(re.escape(origin) + r"[0-9a-z]+-\d+", committable.name, re.ASCII) is not None
    match = _GID.fullmatch(committable.name)
    return (
        match is not None
        and match["owner"] == digest(committable.job, committable.sink)
        and match["lineage"] == digest(committable.lineage)
        and (int(match["token"]), int(match["subtask"]), int(match["checkpoint"]))
        == (committable.token, committable.subtask, committable.checkpoint)
    )
