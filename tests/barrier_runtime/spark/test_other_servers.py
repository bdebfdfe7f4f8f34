"""A server that is no Spark master, on the port of the master's page: Spark's figures are unknown then."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from barrier_runtime.spark.stage import cluster_of


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield listening.getsockname()[1]
        serving.join()


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
NAMELESS = b'{"url": "spark://127.0.0.1:7077", "cores": 4, "activeapps": [{"id": "1", "name": null, "cores": 2}]}'


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x50", id="a TLS alert"),
        pytest.param(b"220 mail.example ESMTP\r\n", id="mail"),
        pytest.param(JSON % (900, b"{}"), id="cut off"),
        pytest.param(JSON % (len(NAMELESS), NAMELESS), id="an application without a name"),
        pytest.param(JSON % (4, b"null"), id="other JSON"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_another_server_is_no_error(answer: bytes) -> None:
    with answering(answer) as port:
        assert cluster_of("spark://127.0.0.1:7077", port, "app") is None
