"""An S3 endpoint of this run's own: moto's server as a child process on a free loopback port, with one empty bucket."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

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
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
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
