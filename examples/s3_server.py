"""An S3 endpoint of this run's own: moto's server as a child process on a free loopback port, with one empty bucket.

    python -m examples.s3_server 9000

moto checks the condition of a put and stores the object in two steps, with nothing between them to keep another request
out: two creators of one key can both be told that they won. S3 never does that, and the protocol rests on it, so here
requests are worked off one at a time.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET = "barrier-runtime"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yields `s3://…`. Endpoint and (dummy) credentials go into this process's environment, as for any S3 user."""
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    os.environ.update(
        AWS_ENDPOINT_URL=endpoint,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "examples.s3_server", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(endpoint, server)
        import boto3

        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        server.terminate()
        server.wait()


class OneAtATime:
    """A WSGI application that works off one request after the other."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> list[bytes]:
        with self._lock:
            return list(self._application(environ, start_response))


def make_s3_server(port: int) -> Any:
    """moto's S3 on 127.0.0.1 (0: any free port), not yet serving: call `serve_forever`, later `shutdown`."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    return make_server("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(endpoint: str, server: "subprocess.Popen[bytes]", patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"moto's S3 server ended at once (exit code {server.returncode}): pip install 'moto[s3,server]'")
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    sys.exit(f"moto's S3 server does not answer at {endpoint}")


if __name__ == "__main__":
    make_s3_server(int(sys.argv[1])).serve_forever()
