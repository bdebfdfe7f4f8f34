"""A temporary MariaDB server, from Debian's package. The server speaks MySQL's protocol."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.servers.base import Server, find_program, ordinary_user, run_as

USER = "barrier"
DATABASE = "barrier"
_SETTINGS = {
    # Data in the kernel survive SIGKILL. Syncing protects from the end of the machine, which is not tested.
    "innodb-flush-method": "nosync",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "skip-name-resolve": "1",
    "skip-log-bin": "1",
    "performance-schema": "0",
    "character-set-server": "utf8mb4",
}


class MariaServer(Server):
    name = "mariadb"

    def __init__(self, password: str | None = None) -> None:
        self._binary = find_program("mariadbd", "mariadb-server", "usr/sbin/mariadbd")
        install = find_program("mariadb-install-db", "mariadb-server", "usr/bin/mariadb-install-db")
        super().__init__(ordinary_user("mysql"))
        self._password = password
        login = f" identified by '{password}'" if password else ""
        self._first = self.directory / "first.sql"
        self._first.write_text(
            f"create database if not exists {DATABASE};\n"
            f"create user if not exists '{USER}'@'%'{login};\n"
            f"grant all on *.* to '{USER}'@'%' with grant option;\n"
        )
        self._first.chmod(0o644)
        run_as(
            self.user,
            [
                install,
                "--no-defaults",
                f"--datadir={self._data}",
                f"--tmpdir={self.directory}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            ],
            self.directory,
        )

    @property
    def url(self) -> str:
        """URL, with the password if the server has a password."""
        login = f"{USER}:{self._password}" if self._password else USER
        return f"mysql://{login}@127.0.0.1:{self.port}/{DATABASE}"

    def command(self) -> list[str]:
        place = [
            f"--datadir={self._data}",
            f"--tmpdir={self.directory}",
            f"--socket={self.directory}/socket",
            f"--pid-file={self.directory}/pid",
        ]
        chosen = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        network = ["--bind-address=127.0.0.1", f"--port={self.port}"]
        return [self._binary, "--no-defaults", *place, *network, *chosen, f"--init-file={self._first}"]

    def ready(self) -> bool:
        self.connect().close()
        return True

    def connect(self) -> Any:
        """A connection in autocommit mode."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self._password or "",
            database=DATABASE,
            autocommit=True,
            connect_timeout=2,
        )

    @property
    def _data(self) -> Path:
        return self.directory / "data"


@contextlib.contextmanager
def mariadb_server(*, password: str | None = None) -> Iterator[MariaServer]:
    """A running server with an empty database `barrier`, whose user `barrier` has all rights."""
    server = MariaServer(password)
    try:
        server.start()
        yield server
    finally:
        server.close()
