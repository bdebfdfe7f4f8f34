"""Finishes decided commits of earlier releases in a PostgreSQL database, and drops undecided ones.

Earlier releases kept rows as CSV in the table `barrier_runtime.staged`, or in a prepared transaction with a global
identifier (gid).

| left by an earlier release   | this release                                                           |
|------------------------------|------------------------------------------------------------------------|
| decided, staged              | the global commit raises the mark, copies the rows, drops the parts    |
| decided, prepared            | recovery commits; a row of `prepared_commits` proves an earlier commit |
| undecided, of an older token | recovery drops the rows or rolls back                                  |
| a running process            | the fence refuses its rows                                             |
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from barrier_runtime.connectors.postgres.dialect import PostgresDialect, PostgresTarget
from barrier_runtime.connectors.postgres.session import digest, load_psycopg
from barrier_runtime.connectors.sink import SinkContext, committable_format
from barrier_runtime.connectors.sink_bases.sql.dialect import DeliveryMark, SqlSession
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.texts import counted
from barrier_runtime.state.versioned import VersionedDecoder

EARLIER_LAYOUT = 1
_GID = re.compile(
    r"barrier_runtime:(?P<owner>[0-9a-f]{16}):(?P<store>[0-9a-f]{16}):(?P<lineage>[0-9a-f]{16}):"
    r"(?P<token>\d+):(?P<subtask>\d+):(?P<checkpoint>\d+):[0-9a-z]+:[a-z0-9-]+",
    re.ASCII,
)
_RAISE_FENCE = """
insert into barrier_runtime.fences as f (job, sink, lineage, token) values (%s, %s, %s, %s)
on conflict (job, sink, lineage) do update set token = greatest(f.token, excluded.token)
"""
_PARTS = "select data from barrier_runtime.staged where job = %s and sink = %s and batch = %s order by part"
_DROP = "delete from barrier_runtime.staged where job = %(job)s and sink = %(sink)s and batch = any(%(batches)s)"
_SWEEP = """
delete from barrier_runtime.staged where job = %s and sink = %s and token < %s and subtask %% %s = %s
and (lineage = %s or store = %s) and batch <> all(%s::text[])
"""
_PREPARED = "select gid from pg_prepared_xacts where starts_with(gid, %s) and database = current_database()"
_IS_COMMITTED = """
select 1 from barrier_runtime.prepared_commits
where job = %s and sink = %s and lineage = %s and subtask = %s and checkpoint >= %s
"""


class EarlierCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    transactions: Literal["staged", "prepared"]
    job: str
    sink: str
    lineage: str
    token: int
    subtask: int
    checkpoint: int
    target: str  # schema.table
    columns: tuple[str, ...]
    name: str  # of the batch, or gid
    sizes: tuple[int, ...]  # bytes of the parts, in row order
    rows: int

    @property
    def has_own_name(self) -> bool:
        if self.transactions == "staged":
            return re.fullmatch(rf"{self.token}-{self.subtask}-[0-9a-z]+-\d+", self.name, re.ASCII) is not None
        place = f"{digest(self.lineage)}:{self.token}:{self.subtask}:{self.checkpoint}:"
        owner = f"barrier_runtime:{digest(self.job, self.sink)}:"
        return _GID.fullmatch(self.name) is not None and self.name.startswith(owner) and f":{place}" in self.name


_DECODER = VersionedDecoder(committable_format(1), msgspec.json.Decoder(EarlierCommittable))


@dataclass
class EarlierCommits:
    """Public methods return the committables of this release."""

    context: SinkContext
    dialect: PostgresDialect
    session: SqlSession
    target: PostgresTarget
    key: Sequence[str]

    def __post_init__(self) -> None:
        self._owner = (self.context.job, self.context.sink)
        self._has_tables = self.dialect.layout == EARLIER_LAYOUT
        if self._has_tables:
            fence = (*self._owner, self.context.lineage, self.context.token)
            self.session.run("opening the sink", lambda connection: connection.execute(_RAISE_FENCE, fence))

    def committed(self, committables: Sequence[bytes]) -> list[bytes]:
        earlier, ours = self._split(committables)
        staged = [each for each in earlier if each.transactions == "staged"]
        staged.sort(key=lambda each: (each.lineage, each.checkpoint, each.subtask))
        for _, together in itertools.groupby(staged, lambda each: (each.lineage, each.columns)):
            self._show(list(together))
        return ours

    def recovered(self, decided: Sequence[bytes]) -> list[bytes]:
        earlier, ours = self._split(decided)
        for each in earlier:
            if each.transactions == "prepared":
                self._end("commit prepared {}", each.name, each)
        if self._has_tables:
            self._sweep([each.name for each in earlier])
        return ours

    def aborted(self, committable: bytes) -> list[bytes]:
        earlier, ours = self._split([committable])
        for each in earlier:
            if each.transactions == "prepared":
                self._end("rollback prepared {}", each.name)
            else:
                self.session.run("aborting", lambda connection: connection.execute(_DROP, self._dropping(earlier)))
        return ours

    def _split(self, committables: Sequence[bytes]) -> tuple[list[EarlierCommittable], list[bytes]]:
        ours = [each for each in committables if b'"transactions":' not in each]
        return [self._decoded(each) for each in committables if each not in ours], ours

    def _decoded(self, data: bytes) -> EarlierCommittable:
        where = self.context.where
        found = _DECODER.decode(data, where)
        if (found.job, found.sink) != self._owner or not found.has_own_name:
            raise Corrupt(
                f"{where}: a committable names {found.name[:200]!r} of job {found.job[:64]!r}, sink "
                f"{found.sink[:64]!r}, which this sink did not make: nothing was committed or deleted; restore "
                "an intact copy of the checkpoint"
            )
        if found.target != self.target.shown:
            raise InvalidJob(
                f"{where}: checkpoint {found.checkpoint} decided {counted(found.rows, 'row')} for table "
                f"{found.target}; the sink now has {self.target.shown}: run the job once more with the old table, then "
                "change"
            )
        return found

    def _dropping(self, batches: Sequence[EarlierCommittable]) -> dict[str, Any]:
        return {"job": self.context.job, "sink": self.context.sink, "batches": [each.name for each in batches]}

    def _show(self, batches: Sequence[EarlierCommittable]) -> None:
        first, checkpoint = batches[0], batches[-1].checkpoint
        mark = DeliveryMark(*self._owner, first.lineage)

        def work(connection: Any) -> None:
            written = False
            while not written and (known := self.dialect.mark_made(connection, mark)) < checkpoint:
                due = [each for each in batches if each.checkpoint > known]
                parts = [self._parts(connection, each) for each in due]
                raising = {**mark.names, "known": known, "checkpoint": checkpoint}
                columns, drop = list(first.columns), (_DROP, self._dropping(due))
                written = self.dialect.copy_in(
                    connection, self.target, self.key, raising, columns, parts, len(parts), [drop]
                )

        self.session.run(f"committing checkpoint {checkpoint}", work)

    def _parts(self, connection: Any, batch: EarlierCommittable) -> list[bytes]:
        found = connection.cursor(binary=True).execute(_PARTS, (*self._owner, batch.name)).fetchall()
        parts = [data for (data,) in found]
        if [len(each) for each in parts] != list(batch.sizes):
            raise self._gone(batch, f"barrier_runtime.staged has {len(parts)} of {len(batch.sizes)} parts")
        return parts

    def _end(self, statement: str, gid: str, decided: EarlierCommittable | None = None) -> None:
        """Raises `Corrupt` if `decided` is missing without a record of the commit: the rows are lost."""
        sql, errors = load_psycopg().sql, load_psycopg().errors

        def work(connection: Any) -> None:
            try:
                connection.execute(sql.SQL(statement).format(sql.Literal(gid)))
            except errors.UndefinedObject as error:
                if decided is not None and not self._is_committed(connection, decided):
                    raise self._gone(decided, f"the server has no prepared transaction {gid!r}") from error

        self.session.run(f"ending the prepared transaction {gid!r}", work)

    def _is_committed(self, connection: Any, each: EarlierCommittable) -> bool:
        given = (*self._owner, each.lineage, each.subtask, each.checkpoint)
        return connection.execute(_IS_COMMITTED, given).fetchone() is not None

    def _sweep(self, kept: list[str]) -> None:
        context, store = self.context, digest(self.context.job_store.url)
        ours = (context.token, context.parallelism, context.subtask, context.lineage, store)
        prefix = f"barrier_runtime:{digest(*self._owner)}:"

        def work(connection: Any) -> list[tuple[str]]:
            connection.execute(_SWEEP, (*self._owner, *ours, kept))
            found: list[tuple[str]] = connection.execute(_PREPARED, (prefix,)).fetchall()
            return found

        for (gid,) in self.session.run("dropping undecided rows", work):
            match = _GID.fullmatch(gid)
            if (
                match is not None
                and gid not in kept
                and (match["store"] == store or match["lineage"] == digest(context.lineage))
                and int(match["token"]) < context.token
                and int(match["subtask"]) % context.parallelism == context.subtask
            ):
                self._end("rollback prepared {}", gid)

    def _gone(self, committable: EarlierCommittable, found: str) -> Corrupt:
        return Corrupt(
            f"{self.context.where}: the {counted(committable.rows, 'row')} that checkpoint {committable.checkpoint} "
            f"decided are gone: {found}, and nothing says that they are in {committable.target}. Were they aborted, "
            "rolled back or deleted, or was an older backup of the database restored? Put them back; the commit is "
            "tried again"
        )
