"""A server that answers a submission with a malformed secret is not a coordinator: an error of this package."""

import http.server
import threading
from collections.abc import Iterator

import msgspec
import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.rest_types import SubmitReply
from barrier_runtime.state.errors import Unavailable


@pytest.fixture(params=["no hex", "00", ""])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    class Door(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = msgspec.json.encode(SubmitReply("running", request.param, "127.0.0.1", 1))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_malformed_secret_is_an_error_that_names_the_address(address: str) -> None:
    with pytest.raises(Unavailable, match=f"{address}/jobs/flights answered 200 .* check the address"):
        CoordinatorClient(address, "token").submit(spec())
