"""Staged transactions of the PostgreSQL sink: rows wait in a table of ours until their checkpoint is decided.

- Pre-commit, per part: the rows are checked by copying them into a temporary table like the target, so that a row which
  the target would refuse fails here and not after the decision; then one statement puts the part into
  `barrier_runtime.staged`, if the fencing token is not an older one, under a shared lock. Who opens a newer generation
  waits for that lock, so nothing of an older one can appear after the newer one has looked for orphans.
- A subtask has nothing to commit by itself: its rows are where they have to be. `recover` sees that they are.
- The global commit, one SQL transaction over all subtasks and all checkpoints that were decided meanwhile: lock the row
  of `commits`, move the parts of what it does not say to be visible into the target, raise `commits`. Readers see whole
  checkpoints. Two processes that do it at once take turns, and the second finds nothing to do.

Statements whose answers nothing depends on travel together. A global commit of up to `_MOVE_BYTES` takes four trips:

| the client sends                                          | if it dies or stalls before the next, or the server dies |
|-----------------------------------------------------------|----------------------------------------------------------|
| begin; make the row of `commits`; lock it; delete parts   | rolled back: parts and mark are as before. A stalled     |
| and return their data                                     | client's session ends after 20 s; its successor waits    |
| copy                                                      | for the lock until then, and does the same. What that    |
| the rows                                                  | client sends afterwards is refused                       |
| (upsert from the temporary table;) raise the mark; commit | all or nothing. Who gets no answer makes another         |
|                                                           | connection, waits for the lock and finds the mark        |

The client remembers a mark that it has seen or set, and asks for no part up to that: marks only rise, so a remembered
one is never too high. If the row says more, another process was at it: the client begins again with that mark.

A group of checkpoints that fails is halved (`connectors/commit_groups`), between decisions and not between
committables: one of a checkpoint that was given up holds rows of some subtasks only, and must appear together with the
next decided ones.

`commits` holds one number per lineage, and that is enough for ever: within a lineage checkpoint ids only rise, and what
a manifest lists and a global commit up to n has not moved belongs to a checkpoint after n.

Parts are CSV in one `bytea` each, not rows of a staging table like the target. Measured (PostgreSQL 15, fsync on, three
columns, one client, rows/s through pre-commit and commit): a staging table like the target, with `INSERT … SELECT …
ORDER BY` and `DELETE`, 0.27 million; this way 0.70 million (1.0 million without the check). Such a table would also
leave a dead row behind for every row, and would have to follow every change of the target.
"""

from collections.abc import Sequence
from typing import Any

from barrier_runtime.connectors.commit_groups import CommitGroups
from barrier_runtime.connectors.decisions import decided_checkpoints
from barrier_runtime.connectors.postgres.committable import Names, PostgresCommittable
from barrier_runtime.connectors.postgres.fence import check_fence
from barrier_runtime.connectors.postgres.session import PostgresSession, at_once, load_psycopg
from barrier_runtime.connectors.postgres.target import PostgresTarget, copy_into, make_check_table
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt

_MOVE_BYTES = 16 << 20  # fetched and copied at a time, and of checkpoints that are committed together
_ROWS_TABLE = "barrier_runtime_check"

_INSERT_PART = """
insert into barrier_runtime.staged (job, sink, batch, part, lineage, store, token, subtask, data)
select job, sink, %s, %s, lineage, %s, %s, %s, %b from barrier_runtime.fences
where job = %s and sink = %s and lineage = %s and token <= %s for share
on conflict do nothing
"""
_MAKE_MARK = """
insert into barrier_runtime.commits (job, sink, lineage, checkpoint) values (%s, %s, %s, 0) on conflict do nothing
"""
_LOCK_MARK = """
select checkpoint from barrier_runtime.commits where job = %s and sink = %s and lineage = %s for update
"""
_RAISE_MARK = """
update barrier_runtime.commits set checkpoint = %s, committed_at = now() where job = %s and sink = %s and lineage = %s
"""
_TAKE_PARTS = """
delete from barrier_runtime.staged s using unnest(%s::text[], %s::int[]) as wanted (batch, part)
where s.job = %s and s.sink = %s and s.batch = wanted.batch and s.part = wanted.part
returning s.batch, s.part, s.data
"""
_THERE = """
select wanted.batch, count(s.batch), coalesce(max(c.checkpoint), 0)
from unnest(%s::text[], %s::text[]) as wanted (batch, lineage)
left join barrier_runtime.staged s on s.job = %s and s.sink = %s and s.batch = wanted.batch
left join barrier_runtime.commits c on c.job = %s and c.sink = %s and c.lineage = wanted.lineage
group by wanted.batch
"""
_SWEEP = """
delete from barrier_runtime.staged where job = %s and sink = %s and token < %s and subtask %% %s = %s
and (lineage = %s or store = %s) and batch <> all(%s::text[])
"""

_Part = tuple[PostgresCommittable, int]  # a committable and the number of its part
_Step = tuple[int, list[PostgresCommittable]]  # a decided checkpoint and what it shows


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
        self._visible: dict[str, int] = {}  # by lineage: all up to this checkpoint is known to be visible
        self._groups = CommitGroups(_MOVE_BYTES)

    # ------------------------------------------------------------ staging

    def stage_part(self, batch: str, part: int, data: bytes, columns: tuple[str, ...]) -> None:
        """Make one part durable. A repetition changes nothing."""
        context = self._context
        origin = (self._names.store_digest, context.token, context.subtask)
        fence = (context.job, context.sink, context.lineage, context.token)

        def work(connection: Any) -> None:
            if self._checks_on != (connection, columns):
                connection.execute("drop table if exists pg_temp.barrier_runtime_check")
                make_check_table(connection, self._target, columns, self._key)
                self._checks_on = (connection, columns)
            copy_into(connection, _temporary(), columns, [data])  # which empties itself
            if connection.execute(_INSERT_PART, (batch, part, *origin, data, *fence)).rowcount == 0:
                check_fence(connection, context, self._where, "stage rows")  # or the part is there already

        self._staging.run("staging rows", work, autocommit=True)

    # ------------------------------------------------------------ deciding

    def commit(self, committable: PostgresCommittable) -> None:
        """Nothing: the rows wait for those of the other subtasks."""

    def check_there(self, committables: Sequence[PostgresCommittable]) -> None:
        """Raise `Corrupt` unless the rows of all of them are staged, or visible already."""
        if not committables:
            return
        names = [each.name for each in committables]
        owner = (self._context.job, self._context.sink)
        asked = (names, [each.lineage for each in committables], *owner, *owner)
        found = self._deciding.run(
            "looking for decided rows",
            lambda connection: {
                name: (parts, visible) for name, parts, visible in connection.execute(_THERE, asked).fetchall()
            },
            autocommit=True,
        )
        for each in committables:
            parts, visible = found[each.name]
            if parts != len(each.sizes) and each.checkpoint > visible:
                raise self._gone(each, parts)

    def commit_globally(self, checkpoint: int, committables: Sequence[PostgresCommittable]) -> None:
        """Move the rows of all of them that are not visible yet, oldest first, in as few SQL transactions as go."""
        own = self._context.lineage
        for lineage in sorted({each.lineage for each in committables} - {own}):
            inherited = [each for each in committables if each.lineage == lineage]
            self._show(lineage, max(each.checkpoint for each in inherited), inherited)
        due = self._due(own, committables)
        if not due:
            return
        if not self._groups.limited and _bytes_of(due) <= _MOVE_BYTES:
            try:
                self._show(own, checkpoint, due)
            except BarrierRuntimeError as error:  # which decisions there are to be halved, only the log says
                self._groups.failed(len(self._steps(checkpoint, due)), error)
            else:
                return

        def show(steps: Sequence[_Step]) -> None:
            self._show(own, steps[-1][0], [each for _, step in steps for each in step])

        self._groups.commit(self._steps(checkpoint, due), lambda step: _bytes_of(step[1]), show)

    def _due(self, lineage: str, committables: Sequence[PostgresCommittable]) -> list[PostgresCommittable]:
        visible = self._visible.get(lineage, 0)
        return [each for each in committables if each.lineage == lineage and each.checkpoint > visible]

    def _steps(self, checkpoint: int, due: Sequence[PostgresCommittable]) -> list[_Step]:
        """The decisions that show something, oldest first, and what each shows; the last one is `checkpoint`."""
        oldest = min(each.checkpoint for each in due)
        between = decided_checkpoints(self._context, oldest - 1) if oldest < checkpoint else []
        steps: list[_Step] = []
        shown = 0
        for decided in [*(each for each in between if each < checkpoint), checkpoint]:
            step = [each for each in due if shown < each.checkpoint <= decided]
            if step:
                steps.append((decided, step))
                shown = decided
        return steps

    def _show(self, lineage: str, checkpoint: int, committables: Sequence[PostgresCommittable]) -> None:
        """Move what is not visible yet, and say that everything of this lineage up to `checkpoint` is."""
        owner = (self._context.job, self._context.sink, lineage)

        def work(connection: Any) -> None:
            while due := self._due(lineage, committables):
                windows = _windows(due)
                with at_once(connection):
                    connection.execute("begin")
                    connection.execute(_MAKE_MARK, owner)
                    mark = connection.execute(_LOCK_MARK, owner)
                    taken = self._take(connection, windows[0])
                (visible,) = mark.fetchone()
                if visible > self._visible.get(lineage, 0):  # another process has committed, or this one's predecessor
                    connection.execute("rollback")
                    self._visible[lineage] = visible
                    continue
                for window, following in zip(windows, [*windows[1:], None], strict=True):
                    self._copy(connection, window, self._found(window, taken))
                    with at_once(connection):
                        if self._key:
                            connection.execute(self._upsert(window))
                        if following is not None:
                            if self._key:
                                connection.execute("truncate pg_temp.barrier_runtime_check")
                            taken = self._take(connection, following)
                        else:
                            connection.execute(_RAISE_MARK, (checkpoint, *owner))
                            connection.execute("commit")
                self._visible[lineage] = checkpoint

        self._deciding.run(f"committing checkpoint {checkpoint}", work, autocommit=True)

    def _take(self, connection: Any, window: Sequence[_Part]) -> Any:
        """A cursor over the parts' data, once the server has answered."""
        wanted = ([committable.name for committable, _ in window], [part for _, part in window])
        return connection.cursor(binary=True).execute(_TAKE_PARTS, (*wanted, self._context.job, self._context.sink))

    def _found(self, window: Sequence[_Part], taken: Any) -> list[bytes]:
        found = {(name, part): data for name, part, data in taken.fetchall()}
        taken.close()
        for committable, part in window:
            if len(found.get((committable.name, part), b"")) != committable.sizes[part]:
                raise self._gone(committable, sum(name == committable.name for name, _ in found))
        return [found[committable.name, part] for committable, part in window]

    def _copy(self, connection: Any, window: Sequence[_Part], data: Sequence[bytes]) -> None:
        """Into the target, or, to be upserted, into a temporary table."""
        columns = window[0][0].columns
        if not self._key:
            copy_into(connection, self._into(), columns, data)
            return
        if self._rows_on != (connection, columns):
            connection.execute("drop table if exists pg_temp.barrier_runtime_check")
            make_check_table(connection, self._target, columns, self._key)
            connection.execute(
                "alter table pg_temp.barrier_runtime_check "
                "add column barrier_runtime_order bigint generated always as identity"
            )
            self._rows_on = (connection, columns)
        copy_into(connection, _temporary(), columns, data)

    def _into(self) -> Any:
        return load_psycopg().sql.Identifier(self._target.schema, self._target.table)

    def _upsert(self, window: Sequence[_Part]) -> Any:
        return _upsert(self._into(), window[0][0].columns, self._key)

    def abort(self, committable: PostgresCommittable) -> None:
        self._deciding.run(
            "aborting",
            lambda connection: connection.execute(
                "delete from barrier_runtime.staged where job = %s and sink = %s and batch = %s",
                (committable.job, committable.sink, committable.name),
            ),
            autocommit=True,
        )

    def sweep(self, decided: Sequence[PostgresCommittable]) -> None:
        """Drop what older generations staged and no decision names."""
        context = self._context
        ours = (context.parallelism, context.subtask, context.lineage, self._names.store_digest)
        kept = [each.name for each in decided]
        self._deciding.run(
            "dropping undecided rows",
            lambda connection: connection.execute(_SWEEP, (context.job, context.sink, context.token, *ours, kept)),
            autocommit=True,
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


def _bytes_of(committables: Sequence[PostgresCommittable]) -> int:
    return sum(sum(each.sizes) for each in committables)


def _windows(due: Sequence[PostgresCommittable]) -> list[list[_Part]]:
    """All parts in order: of equal columns in a window, and together at most `_MOVE_BYTES`; at least one."""
    windows: list[list[_Part]] = []
    size = 0
    for committable in due:
        for part, more in enumerate(committable.sizes):
            size += more
            if not windows or size > _MOVE_BYTES or windows[-1][0][0].columns != committable.columns:
                windows.append([])
                size = more
            windows[-1].append((committable, part))
    return windows


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
