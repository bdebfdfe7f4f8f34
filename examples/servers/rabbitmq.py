"""A temporary RabbitMQ broker, from Debian's package, with an Erlang port mapper of its own."""

import contextlib
import shutil
from collections.abc import Iterator

from examples.servers.base import Server, find_program, free_port, ordinary_user


class RabbitServer(Server):
    name = "rabbitmq"

    def __init__(self) -> None:
        # Debian's /usr/sbin/rabbitmq-server changes user and directories: start the wrapped program instead.
        self._program = find_program("rabbitmq-server", "rabbitmq-server", "usr/lib/rabbitmq/bin/rabbitmq-server")
        super().__init__(ordinary_user("rabbitmq"))
        self._between_nodes, self._mapper = free_port(), free_port()
        (self.directory / "rabbitmq.conf").write_text(
            "loopback_users = none\nvm_memory_high_watermark.absolute = 512MB\n"
        )
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "advanced.config").write_text("[].\n")
        if self.user:
            for path in self.directory.iterdir():
                shutil.chown(path, self.user, self.user)

    @property
    def url(self) -> str:
        """URL without credentials: clients use the user `guest` by default."""
        return f"amqp://127.0.0.1:{self.port}/%2F"

    def command(self) -> list[str]:
        return [self._program]

    def environment(self) -> dict[str, str]:
        here = self.directory
        return {
            "HOME": str(here),  # for the Erlang cookie
            "RABBITMQ_NODENAME": f"barrier-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._between_nodes),
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(here / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "plugins"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def ready(self) -> bool:
        import pika

        pika.BlockingConnection(pika.URLParameters(self.url + "?socket_timeout=2")).close()
        return True


@contextlib.contextmanager
def rabbitmq_server() -> Iterator[RabbitServer]:
    server = RabbitServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
