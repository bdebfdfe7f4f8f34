"""A temporary ClickHouse server, from Debian's package."""

import contextlib
from collections.abc import Iterator

from examples.servers.base import Server, find_program

_CONFIG = """<yandex>
  <logger><level>warning</level><console>true</console></logger>
  <listen_host>127.0.0.1</listen_host>
  <tcp_port>{port}</tcp_port>
  <path>{directory}/data/</path>
  <tmp_path>{directory}/tmp/</tmp_path>
  <users_config>{directory}/users.xml</users_config>
  <mark_cache_size>5368709</mark_cache_size>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
</yandex>
"""
_USERS = """<yandex>
  <profiles><default><max_memory_usage>1000000000</max_memory_usage></default></profiles>
  <users><default>
    <password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
  </default></users>
  <quotas><default></default></quotas>
</yandex>
"""


class ClickHouseServer(Server):
    name = "clickhouse"

    def __init__(self) -> None:
        self._program = find_program("clickhouse-server", "clickhouse-server")
        super().__init__()
        config = _CONFIG.format(port=self.port, directory=self.directory)
        (self.directory / "config.xml").write_text(config, encoding="utf-8")
        (self.directory / "users.xml").write_text(_USERS, encoding="utf-8")

    @property
    def url(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}/default"

    def command(self) -> list[str]:
        return [self._program, f"--config-file={self.directory / 'config.xml'}"]

    def ready(self) -> bool:
        from clickhouse_driver import Client

        with Client("127.0.0.1", port=self.port, connect_timeout=2, send_receive_timeout=2) as client:
            return bool(client.execute("SELECT 1") == [(1,)])


@contextlib.contextmanager
def clickhouse_server() -> Iterator[ClickHouseServer]:
    server = ClickHouseServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
