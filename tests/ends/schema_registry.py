"""A schema registry on loopback: as much of Confluent's REST interface as the client's serialisers use."""

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Registry:
    """`down`: answers 503 to everything."""

    def __init__(self) -> None:
        self.down = False
        self.asked = 0
        self._schemas: list[dict[str, Any]] = []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = re.match(r"/schemas/ids/(\d+)", self.path)
                number = int(found[1]) if found else 0
                if 0 < number <= len(registry._schemas):
                    self.answer(200, registry._schemas[number - 1])
                else:
                    self.answer(404, {"error_code": 40403, "message": f"no {self.path}"})

            def do_POST(self) -> None:
                subject = self.path.split("/")[2].split("?")[0]
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                schema = {"schemaType": "AVRO", **body}
                if schema not in registry._schemas:
                    registry._schemas.append(schema)
                number = registry._schemas.index(schema) + 1
                self.answer(200, {**schema, "id": number, "subject": subject, "version": 1})

            def answer(self, status: int, body: dict[str, Any]) -> None:
                registry.asked += 1
                if registry.down:
                    status, body = 503, {"error_code": 50301, "message": "down"}
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def schema_registry() -> Iterator[Registry]:
    registry = Registry()
    thread = threading.Thread(target=registry.server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        thread.join()
        registry.server.server_close()
