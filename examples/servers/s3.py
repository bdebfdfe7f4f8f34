"""A temporary S3 endpoint: moto's server as a child process, with one empty bucket.

    python -m examples.servers.s3 9000

moto checks the condition of a put and stores the object in two steps, without excluding other requests in between: two
creators of one key can both get success. S3 never does that, and the protocol relies on S3's promise, so this server
answers a single request at a time.

moto keeps objects in memory, whereas objects of S3 survive. So `stop` and `kill` end the service, not the
process: nobody listens, and every connection is cut, also of running requests, whose outcome no client learns.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from examples.servers.base import Server

BUCKET = "barrier-runtime"
_REFUSE, _SERVE = signal.SIGUSR1, signal.SIGUSR2


class S3Server(Server):
    name = "s3"
    bucket = BUCKET

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "examples.servers.s3", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}

    def ready(self) -> bool:
        urllib.request.urlopen(self.endpoint, timeout=2).close()
        return True

    def start(self) -> None:
        if self.alive:
            self._tell(_SERVE)
            self._wait_until_ready()
        else:
            super().start()
        self._serving = True

    def stop(self, patience_s: float = 30.0) -> None:
        self._refuse(patience_s)

    def kill(self) -> None:
        self._refuse(30.0)

    def _refuse(self, patience_s: float) -> None:
        if not self.running:
            return
        self._tell(_REFUSE)
        deadline = time.monotonic() + patience_s
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                time.sleep(0.01)
        self._serving = False

    def _tell(self, order: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, order)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running S3 endpoint.

    Endpoint and (dummy) credentials are in this process's environment during the block."""
    server = S3Server()
    try:
        server.start()
        with known_to_clients(server):
            yield server
    finally:
        server.close()


@contextlib.contextmanager
def known_to_clients(server: S3Server) -> Iterator[None]:
    """Sets the environment of `s3_server` for a running server, and makes the bucket."""
    mine = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in mine}
    try:
        os.environ.update(mine)
        import boto3

        boto3.client("s3").create_bucket(Bucket=server.bucket)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class OneAtATime:
    """WSGI application that handles requests in turn, never two at a time."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> list[bytes]:
        with self._lock:
            return list(self._application(environ, start_response))


def moto_application() -> OneAtATime:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return OneAtATime(DomainDispatcherApplication(create_backend_app))


def make_s3_server(port: int, application: OneAtATime, connections: set[socket.socket] | None = None) -> Any:
    """Makes a server on 127.0.0.1 (port 0: any free port): call `serve_forever`, later `shutdown`.

    `connections` holds the open connections."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import make_server

    open_now = connections if connections is not None else set()

    class Handler(MotoRequestHandler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            open_now.add(self.connection)

        def finish(self) -> None:
            open_now.discard(self.connection)
            super().finish()

    return make_server("127.0.0.1", port, application, threaded=True, request_handler=Handler)


def serve(port: int) -> None:
    """Serves, refuses and serves again on signals, until killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [_REFUSE, _SERVE])
    application, connections = moto_application(), set[socket.socket]()
    while True:
        server = make_s3_server(port, application, connections)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        signal.sigwait([_REFUSE])
        server.shutdown()
        serving.join()
        server.socket.close()
        for connection in list(connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        signal.sigwait([_SERVE])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
