"""A temporary PostgreSQL server, from Debian's package."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT
from urllib.parse import quote

from examples.servers.base import Server, find_program, ordinary_user, run_as

USER = "barrier"
_CLUSTER = ["--encoding=UTF8", "--locale=C", "--no-sync"]
_SETTINGS = {
    # Data in the kernel survive SIGKILL. fsync protects from the end of the machine, which is not tested.
    "fsync": "off",
    "dynamic_shared_memory_type": "mmap",  # in the data directory: a killed server leaves nothing in /dev/shm
    "shared_buffers": "32MB",
    "max_connections": 100,
    "max_prepared_transactions": 20,
    "autovacuum_naptime": "10s",
    "wal_level": "logical",
    "max_replication_slots": 40,
    "max_wal_senders": 40,
}


class PostgresServer(Server):
    name = "postgres"
    stop_signal = SIGINT  # "fast": ends sessions instead of waiting

    def __init__(self, settings: dict[str, object], password: str | None = None) -> None:
        binaries = Path(find_program("postgres", "postgresql", "usr/lib/postgresql/*/bin/postgres")).parent
        super().__init__(ordinary_user("postgres"))
        self._binary = str(binaries / "postgres")
        self._password = password
        self._settings: dict[str, object] = {}
        self.configure(**settings)
        secret = self.directory / "password"
        secret.write_text(password or "")
        secret.chmod(0o644)
        login = ["--auth=scram-sha-256", f"--pwfile={secret}"] if password else ["--auth=trust"]
        run_as(
            self.user,
            [str(binaries / "initdb"), f"--pgdata={self._data}", f"--username={USER}", *_CLUSTER, *login],
            self.directory,
        )
        secret.unlink()

    @property
    def url(self) -> str:
        """URL for psycopg and libpq, with the password if the server has a password."""
        login = f"{USER}:{quote(self._password, safe='')}" if self._password else USER
        return f"postgresql://{login}@127.0.0.1:{self.port}/postgres"

    @property
    def dsn(self) -> str:
        """Connection string without the password."""
        return f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"

    def configure(self, **settings: object) -> None:
        """Sets server settings from the next start on, such as `max_prepared_transactions=0`."""
        self._settings = {**_SETTINGS, **self._settings, **settings}

    def command(self) -> list[str]:
        # No process of an earlier start lives; another process with the same number must not prevent this start.
        self._forget_shared_memory()
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        chosen = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        place = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.directory)]
        return [self._binary, "-D", str(self._data), *place, *chosen]

    def ready(self) -> bool:
        import psycopg

        with psycopg.connect(self.url, connect_timeout=2) as connection:
            return connection.execute("select not pg_is_in_recovery()").fetchone() == (True,)

    def close(self) -> None:
        self.kill()
        self._forget_shared_memory()
        super().close()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _forget_shared_memory(self) -> None:
        """Removes a killed server's System V segment, whose number is in line 7 of the pid file."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            if len(lines) >= 7 and lines[6].split():
                subprocess.run(["ipcrm", "-m", lines[6].split()[1]], stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def postgres_server(*, password: str | None = None, **settings: object) -> Iterator[PostgresServer]:
    """A running, empty server; superuser `barrier`, without password unless given."""
    server = PostgresServer(settings, password)
    try:
        server.start()
        yield server
    finally:
        server.close()
