"""Staged transactions of the PostgreSQL sink: rows wait in a table of ours until their checkpoint is decided.

- Pre-commit, one SQL transaction per part: the part goes into `barrier_runtime.staged`; its rows are checked by
  copying them into a temporary table like the target, so that a row which the target would refuse fails here and not
  after the decision; then the fencing token is checked under a shared lock. Who opens a newer generation waits for that
  lock, so nothing of an older one can appear after the newer one has looked for orphans.
- The global commit, one SQL transaction over all subtasks: lock the row of `commits`, leave out what it says is
  visible, move the parts of everything else into the target, raise `commits`. Readers see whole checkpoints. Two
  processes that do it at once take turns, and the second finds nothing to do. What an outage has piled up is moved
  decision by decision, so that a failure keeps what was reached. By committable would not do: one of a checkpoint that
  was given up holds rows of some subtasks only, and must appear together with the next decided ones.

`commits` holds one number per lineage, and that is enough for ever: within a lineage checkpoint ids only rise, and what
a manifest lists and a global commit up to n has not moved belongs to a checkpoint after n.

Parts are CSV in one `bytea` each, not rows of a staging table like the target. Measured (PostgreSQL 15, fsync on, three
columns, one client, rows/s through pre-commit and commit): a staging table like the target, with `INSERT … SELECT …
ORDER BY` and `DELETE`, 0.27 million; this way 0.70 million (1.0 million without the check). Such a table would also
leave a dead row behind for every row, and would have to follow every change of the target.
"""

from collections.abc import Sequence
from typing import Any

from barrier_runtime.connectors.decisions import decided_checkpoints
from barrier_runtime.connectors.postgres.committable import Names, PostgresCommittable
from barrier_runtime.connectors.postgres.fence import check_fence
from barrier_runtime.connectors.postgres.session import PostgresSession, load_psycopg
from barrier_runtime.connectors.postgres.target import PostgresTarget, copy_into, make_check_table
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Corrupt

_MOVE_BYTES = 16 << 20  # fetched and copied at a time
_ROWS_TABLE = "barrier_runtime_check"

_INSERT_PART = """
insert into barrier_runtime.staged (job, sink, batch, part, lineage, store, token, subtask, data)
values (%s, %s, %s, %s, %s, %s, %s, %s, %b) on conflict do nothing
"""
_TAKE_PARTS = """
delete from barrier_runtime.staged s using unnest(%s::text[], %s::int[]) as wanted (batch, part)
where s.job = %s and s.sink = %s and s.batch = wanted.batch and s.part = wanted.part
returning s.batch, s.part, s.data
"""
_SWEEP = """
delete from barrier_runtime.staged where job = %s and sink = %s and token < %s and subtask %% %s = %s
and (lineage = %s or store = %s) and batch <> all(%s::text[])
"""


class StagedTransactions:
    """Of one sink subtask. `staging` and `deciding`: two connections, because two threads work at a time."""

    def __init__(
        self,
        context: SinkContext,
        names: Names,
        target: PostgresTarget,
        key: tuple[str, ...],
        staging: PostgresSession,
        deciding: PostgresSession,
        where: str,
    ) -> None:
        self._context = context
        self._names = names
        self._target = target
        self._key = key
        self._staging = staging
        self._deciding = deciding
        self._where = where
        self._checks_on: tuple[Any, tuple[str, ...]] | None = None  # connection and columns of its temporary table
        self._rows_on: tuple[Any, tuple[str, ...]] | None = None

    def stage_part(self, batch: str, part: int, data: bytes, columns: tuple[str, ...]) -> None:
        """Make one part durable. A repetition changes nothing."""
        context = self._context
        batch_key = (context.job, context.sink, batch, part)

        def work(connection: Any) -> None:
            if self._checks_on != (connection, columns):
                make_check_table(connection, self._target, columns, self._key)
                self._checks_on = (connection, columns)
            connection.execute(
                _INSERT_PART,
                (*batch_key, context.lineage, self._names.store_digest, context.token, context.subtask, data),
            )
            copy_into(connection, _temporary(), columns, [data])
            self._check_fence(connection)

        self._staging.run("staging rows", work)

    def _check_fence(self, connection: Any) -> None:
        """Last in its SQL transaction, so that the lock is short."""
        check_fence(connection, self._context, self._where, "stage rows", " for share")

    def commit(self, committable: PostgresCommittable) -> None:
        """Nothing to do before all subtasks are there, but to see that the rows are: staged, or visible already."""

        def work(connection: Any) -> None:
            if committable.checkpoint <= self._visible_through(connection, committable.lineage):
                return
            (parts,) = connection.execute(
                "select count(*) from barrier_runtime.staged where job = %s and sink = %s and batch = %s",
                (committable.job, committable.sink, committable.name),
            ).fetchone()
            # Meanwhile another process may have moved them, but not back.
            if parts != len(committable.sizes) and committable.checkpoint > self._visible_through(
                connection, committable.lineage
            ):
                raise self._gone(committable, parts)

        self._deciding.run("committing", work)

    def commit_globally(self, checkpoint: int, committables: Sequence[PostgresCommittable]) -> None:
        """Move the rows of all of them that are not visible yet, oldest first, one SQL transaction per decision."""
        lineages = sorted({each.lineage for each in committables})
        visible = self._deciding.run(
            "looking for what is visible",
            lambda connection: {lineage: self._visible_through(connection, lineage) for lineage in lineages},
        )
        due = [each for each in committables if each.checkpoint > visible[each.lineage]]
        for lineage in lineages:
            if lineage != self._context.lineage:
                inherited = [each for each in due if each.lineage == lineage]
                if inherited:
                    self._show(lineage, max(each.checkpoint for each in inherited), inherited)
        own = [each for each in due if each.lineage == self._context.lineage]
        shown = 0
        for decided in self._decisions(checkpoint, own):
            self._show(self._context.lineage, decided, [each for each in own if shown < each.checkpoint <= decided])
            shown = decided

    def _decisions(self, checkpoint: int, due: Sequence[PostgresCommittable]) -> list[int]:
        """Rising checkpoints in whose steps `due` can be shown; the last one is `checkpoint`."""
        numbers = sorted({each.checkpoint for each in due})
        if not numbers:
            return []
        if numbers[0] == checkpoint:
            return numbers
        between = decided_checkpoints(self._context, numbers[0] - 1)
        return [*(each for each in between if each < checkpoint), checkpoint]

    def _show(self, lineage: str, checkpoint: int, committables: Sequence[PostgresCommittable]) -> None:
        """Move them, and say that everything of this lineage up to `checkpoint` is visible."""

        def work(connection: Any) -> None:
            visible = self._lock_commits(connection, lineage)
            for group in _of_equal_columns([each for each in committables if each.checkpoint > visible]):
                self._move(connection, group)
            connection.execute(
                "update barrier_runtime.commits set checkpoint = %s, committed_at = now() "
                "where job = %s and sink = %s and lineage = %s",
                (max(visible, checkpoint), self._context.job, self._context.sink, lineage),
            )

        self._deciding.run(f"committing checkpoint {checkpoint}", work)

    def _lock_commits(self, connection: Any, lineage: str) -> int:
        """What is visible in this lineage; nobody else raises it before this SQL transaction ends."""
        owner = (self._context.job, self._context.sink, lineage)
        connection.execute(
            "insert into barrier_runtime.commits (job, sink, lineage, checkpoint) values (%s, %s, %s, 0) "
            "on conflict do nothing",
            owner,
        )
        row = connection.execute(
            "select checkpoint from barrier_runtime.commits where job = %s and sink = %s and lineage = %s for update",
            owner,
        ).fetchone()
        return int(row[0])

    def _visible_through(self, connection: Any, lineage: str) -> int:
        row = connection.execute(
            "select checkpoint from barrier_runtime.commits where job = %s and sink = %s and lineage = %s",
            (self._context.job, self._context.sink, lineage),
        ).fetchone()
        return int(row[0]) if row else 0

    def _move(self, connection: Any, group: Sequence[PostgresCommittable]) -> None:
        """`group`: of equal columns, oldest first."""
        sql = load_psycopg().sql
        columns = group[0].columns
        into = sql.Identifier(self._target.schema, self._target.table)
        if self._key:
            if self._rows_on != (connection, columns):
                connection.execute("drop table if exists pg_temp.barrier_runtime_check")
                make_check_table(connection, self._target, columns, self._key)
                connection.execute(
                    "alter table pg_temp.barrier_runtime_check "
                    "add column barrier_runtime_order bigint generated always as identity"
                )
                self._rows_on = (connection, columns)
            copied_to = _temporary()
        else:
            copied_to = into
        parts = [(each, part) for each in group for part in range(len(each.sizes))]
        while parts:
            taken = _as_many_as_fit(parts)
            copy_into(connection, copied_to, columns, self._take(connection, parts[:taken]))
            if self._key:
                connection.execute(_upsert(into, columns, self._key))
                connection.execute("truncate pg_temp.barrier_runtime_check")
            del parts[:taken]

    def _take(self, connection: Any, parts: Sequence[tuple[PostgresCommittable, int]]) -> list[bytes]:
        with connection.cursor(binary=True) as cursor:
            cursor.execute(
                _TAKE_PARTS,
                ([c.name for c, _ in parts], [p for _, p in parts], self._context.job, self._context.sink),
            )
            found = {(name, part): data for name, part, data in cursor.fetchall()}
        for committable, part in parts:
            if len(found.get((committable.name, part), b"")) != committable.sizes[part]:
                raise self._gone(committable, sum(name == committable.name for name, _ in found))
        return [found[committable.name, part] for committable, part in parts]

    def abort(self, committable: PostgresCommittable) -> None:
        self._deciding.run(
            "aborting",
            lambda connection: connection.execute(
                "delete from barrier_runtime.staged where job = %s and sink = %s and batch = %s",
                (committable.job, committable.sink, committable.name),
            ),
        )

    def sweep(self, decided: Sequence[PostgresCommittable]) -> None:
        """Drop what older generations staged and no decision names."""
        context = self._context
        ours = (context.parallelism, context.subtask, context.lineage, self._names.store_digest)
        kept = [each.name for each in decided]
        self._deciding.run(
            "dropping undecided rows",
            lambda connection: connection.execute(_SWEEP, (context.job, context.sink, context.token, *ours, kept)),
        )

    def _gone(self, committable: PostgresCommittable, parts: int) -> Corrupt:
        return Corrupt(
            f"{self._where}: of the {committable.rows} rows that checkpoint {committable.checkpoint} decided, "
            f"barrier_runtime.staged has {parts} of {len(committable.sizes)} parts of batch {committable.name}, and "
            f"barrier_runtime.commits does not say that they are in {committable.target}. Were they aborted or "
            "deleted, or was an older backup of the database restored? Put them back; the commit is tried again"
        )


def _temporary() -> Any:
    return load_psycopg().sql.Identifier("pg_temp", _ROWS_TABLE)


def _of_equal_columns(committables: Sequence[PostgresCommittable]) -> list[list[PostgresCommittable]]:
    groups: list[list[PostgresCommittable]] = []
    for each in committables:
        if groups and groups[-1][0].columns == each.columns:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _as_many_as_fit(parts: Sequence[tuple[PostgresCommittable, int]]) -> int:
    """At least one, together at most `_MOVE_BYTES`."""
    size = 0
    for count, (committable, part) in enumerate(parts):
        size += committable.sizes[part]
        if count and size > _MOVE_BYTES:
            return count
    return len(parts)


def _upsert(into: Any, columns: Sequence[str], key: Sequence[str]) -> Any:
    """The last row of each key, in the order in which they were written."""
    sql = load_psycopg().sql
    listed, keys = (sql.SQL(", ").join(map(sql.Identifier, names)) for names in (columns, key))
    others = [name for name in columns if name not in key]
    changes = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
    action = sql.SQL("do update set ") + changes if others else sql.SQL("do nothing")
    return sql.SQL(
        "insert into {into} ({listed}) select distinct on ({keys}) {listed} from pg_temp.barrier_runtime_check "
        "order by {keys}, barrier_runtime_order desc on conflict ({keys}) {action}"
    ).format(into=into, listed=listed, keys=keys, action=action)
