"""Prepared transactions of the PostgreSQL sink: the server itself keeps each subtask's rows between the two phases.

Pre-commit copies rows into the target and ends with `PREPARE TRANSACTION`; commit is `COMMIT PREPARED`. Rows move once
instead of twice. Why the server may refuse it, and why staged transactions are the default: an undecided one holds its
locks and keeps vacuum from working for as long as the job is down; any operator may end it with `ROLLBACK PREPARED`,
and with it rows that were decided (this is noticed and said, but cannot be healed); `max_prepared_transactions` bounds
them: the stream waits when commits do not come along; the subtasks' rows become visible one after the other; rows wait
in memory until the barrier.

`COMMIT PREPARED` of a name that the server does not know means committed or rolled back. So each transaction inserts a
row into `barrier_runtime.prepared_commits`, which is there exactly if it was committed. That row also keeps a repeated
pre-commit from preparing the same rows twice: the repetition waits until the first attempt has ended one way or the
other. Only the newest row per lineage and subtask is kept: commits go in order, so it speaks for all before.
"""

from collections.abc import Sequence
from typing import Any

from barrier_runtime.connectors.postgres.committable import Names, PostgresCommittable
from barrier_runtime.connectors.postgres.fence import check_fence, fence_lock
from barrier_runtime.connectors.postgres.session import PostgresSession, load_psycopg
from barrier_runtime.connectors.postgres.target import PostgresTarget, copy_into
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable

PREPARED_PER_SUBTASK = 4  # the open checkpoint, one that expired, one being committed, one left by a killed generation
_OWNER = "job = %s and sink = %s and lineage = %s"


def check_limit(connection: Any, parallelism: int, where: str) -> int:
    """How many prepared transactions of a subtask may wait for their commit; of the server's, one is left to the open
    checkpoint and one to what a killed generation has left. Raises `InvalidJob` when the server allows too few."""
    allowed = int(connection.execute("show max_prepared_transactions").fetchone()[0])
    needed = parallelism * PREPARED_PER_SUBTASK
    if allowed < needed:
        raise InvalidJob(
            f"{where}: transactions='prepared' with parallelism {parallelism} needs max_prepared_transactions >= "
            f"{needed}, the server has {allowed}: set it to {needed} or more (and what others need) in postgresql.conf "
            "and restart the server, or use transactions='staged'"
        )
    return allowed // parallelism - 2


class PreparedTransactions:
    """Of one sink subtask. `staging` and `deciding`: two connections, because two threads work at a time."""

    def __init__(
        self,
        context: SinkContext,
        names: Names,
        target: PostgresTarget,
        staging: PostgresSession,
        deciding: PostgresSession,
        where: str,
    ) -> None:
        self._context = context
        self._names = names
        self._target = target
        self._staging = staging
        self._deciding = deciding
        self._where = where

    def prepare(self, gid: str, checkpoint: int, parts: Sequence[bytes], columns: tuple[str, ...]) -> None:
        """Leave a prepared transaction `gid` with all the rows. Called again after it raised."""
        context = self._context
        identifier = load_psycopg().sql.Identifier(self._target.schema, self._target.table)
        lock = fence_lock(context)

        def work(connection: Any) -> None:
            if _is_prepared(connection, gid):
                return  # by an earlier attempt whose answer was lost
            connection.execute("select pg_advisory_lock_shared(hashtextextended(%s, 0))", (lock,))
            connection.execute("begin")
            self._check_fence(connection)
            connection.execute(
                "insert into barrier_runtime.prepared_commits values (%s, %s, %s, %s, %s)",
                (context.job, context.sink, context.lineage, context.subtask, checkpoint),
            )
            copy_into(connection, identifier, columns, parts)
            connection.execute(_naming("prepare transaction {}", gid))
            connection.execute("select pg_advisory_unlock_shared(hashtextextended(%s, 0))", (lock,))

        self._staging.run("preparing a transaction", work, autocommit=True)

    def _check_fence(self, connection: Any) -> None:
        """The lock is the session's own: a row lock would stay with the prepared transaction."""
        check_fence(connection, self._context, self._where, "prepare transactions")

    def commit(self, committable: PostgresCommittable) -> None:
        def work(connection: Any) -> None:
            try:
                self._end(connection, "commit prepared {}", committable.name)
            except load_psycopg().errors.UndefinedObject as error:
                if not self._is_committed(connection, committable):
                    raise self._gone(committable) from error
            connection.execute(
                f"delete from barrier_runtime.prepared_commits where {_OWNER} and subtask = %s and checkpoint < %s",
                (committable.job, committable.sink, committable.lineage, committable.subtask, committable.checkpoint),
            )

        self._deciding.run(f"committing checkpoint {committable.checkpoint}", work, autocommit=True)

    def _is_committed(self, connection: Any, committable: PostgresCommittable) -> bool:
        row = connection.execute(
            f"select max(checkpoint) from barrier_runtime.prepared_commits where {_OWNER} and subtask = %s",
            (committable.job, committable.sink, committable.lineage, committable.subtask),
        ).fetchone()
        return row[0] is not None and row[0] >= committable.checkpoint

    def abort(self, committable: PostgresCommittable) -> None:
        self._deciding.run(
            "aborting", lambda connection: self._roll_back(connection, committable.name), autocommit=True
        )

    def sweep(self, decided: Sequence[PostgresCommittable]) -> None:
        """Roll back what older generations prepared and no decision names."""
        kept = {each.name for each in decided}

        def work(connection: Any) -> None:
            prepared = connection.execute(
                "select gid from pg_prepared_xacts where starts_with(gid, %s) and database = current_database()",
                (self._names.gid_prefix,),
            ).fetchall()
            for (gid,) in prepared:
                if gid not in kept and self._names.is_orphan(gid, self._context.parallelism):
                    self._roll_back(connection, gid)

        self._deciding.run("rolling undecided transactions back", work, autocommit=True)

    def _roll_back(self, connection: Any, gid: str) -> None:
        if _is_prepared(connection, gid):
            try:
                self._end(connection, "rollback prepared {}", gid)
            except load_psycopg().errors.UndefinedObject:
                return  # somebody else was faster

    def _end(self, connection: Any, statement: str, gid: str) -> None:
        """While another session is at it, as that of a generation that was replaced, the server says that it is busy;
        how that ended can be asked a little later."""
        try:
            connection.execute(_naming(statement, gid))
        except load_psycopg().errors.ObjectNotInPrerequisiteState as error:
            raise Unavailable(
                f"{self._where}: another session is just ending the prepared transaction {gid!r} ({error}). It is "
                "tried again"
            ) from error

    def _gone(self, committable: PostgresCommittable) -> Corrupt:
        return Corrupt(
            f"{self._where}: the {committable.rows} rows that checkpoint {committable.checkpoint} decided are gone: "
            f"the server has no prepared transaction {committable.name!r}, and barrier_runtime.prepared_commits does "
            f"not say that it was committed to {committable.target}. It was aborted, an operator rolled it back, or an "
            "older backup of the database was restored: restore the database, or replay from an older checkpoint"
        )


def _is_prepared(connection: Any, gid: str) -> bool:
    found = connection.execute("select 1 from pg_prepared_xacts where gid = %s", (gid,)).fetchone()
    return found is not None


def _naming(statement: str, gid: str) -> Any:
    sql = load_psycopg().sql
    return sql.SQL(statement).format(sql.Literal(gid))
