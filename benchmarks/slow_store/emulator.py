"""The S3 emulator behind the slow store: moto, with large logs and cheap ranges of large objects.

    python -m benchmarks.slow_store.emulator 9000

moto's listing takes time for all keys of a bucket, and each range copies the whole object. So objects that a benchmark
makes (the records of a long log) are stored beside moto's, by a POST to `/-/load`: they can be read and deleted, a
put-if-absent finds them, and listings leave them out. Ranges are cut from moto's objects without a copy of the rest.
moto answers all other requests.
"""

import hashlib
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from examples.servers.s3 import BUCKET, OneAtATime, S3Server, make_s3_server, moto_application

_LOAD = "/-/load"
_AT_ONCE = 20_000  # objects in one POST

_LOADED = msgspec.msgpack.Decoder(dict[str, bytes])


class Emulator(OneAtATime):
    """moto, with additional objects."""

    def __init__(self) -> None:
        super().__init__(moto_application())
        self._loaded: dict[str, bytes] = {}
        self._date = formatdate(time.time(), usegmt=True)
        self._mine = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:  # type: ignore[override]
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == _LOAD:
            self._loaded.update(_LOADED.decode(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
            start_response("200 OK", [("Content-Length", "0")])
            return []
        key = path.partition(f"/{BUCKET}/")[2]
        if key and not environ.get("QUERY_STRING"):
            with self._mine:
                answer = self._loaded_answer(method, key, environ)
            if answer is None and method == "GET" and environ.get("HTTP_RANGE"):
                answer = self._range(key, environ)
            if answer is not None:
                status, fields, body = answer
                start_response(status, [*fields, ("Content-Length", str(len(body)))])
                return [] if method == "HEAD" else [body]
        return super().__call__(environ, start_response)

    def _loaded_answer(self, method: str, key: str, environ: Any) -> tuple[str, list[tuple[str, str]], bytes] | None:
        body = self._loaded.get(key)
        if body is None:
            return None
        if method == "PUT" and environ.get("HTTP_IF_NONE_MATCH"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            told = b"<Error><Code>PreconditionFailed</Code><Condition>If-None-Match</Condition></Error>"
            return "412 Precondition Failed", [("Content-Type", "application/xml")], told
        if method in ("PUT", "DELETE"):
            del self._loaded[key]
            return None
        asked = environ.get("HTTP_RANGE", "") if method == "GET" else ""
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        fields = [("ETag", f'"{etag}"'), ("Last-Modified", self._date), ("Content-Type", "binary/octet-stream")]
        return ("200 OK", fields, body) if not asked else _part(asked, fields, body)

    def _range(self, key: str, environ: Any) -> tuple[str, list[tuple[str, str]], bytes] | None:
        """None: moto answers the request."""
        from moto.s3.models import s3_backends

        buckets = [bucket for account in s3_backends.values() for bucket in account["aws"].buckets.items()]
        found = next((bucket.keys.get(key) for name, bucket in buckets if name == BUCKET), None)
        first, _, last = environ["HTTP_RANGE"].removeprefix("bytes=").partition("-")
        wanted = environ.get("HTTP_IF_MATCH", "").strip('"')
        if found is None or not first or (wanted and wanted != found.etag.strip('"')) or int(first) >= found.size:
            return None
        begin, end = int(first), min(int(last) + 1 if last else found.size, found.size)
        with found.lock:
            found._value_buffer.seek(begin)
            body = found._value_buffer.read(end - begin)
        fields = [
            ("ETag", found.etag),
            ("Last-Modified", found.last_modified_RFC1123),
            ("Content-Range", f"bytes {begin}-{end - 1}/{found.size}"),
            ("Accept-Ranges", "bytes"),
            ("Content-Type", "binary/octet-stream"),
        ]
        return "206 Partial Content", fields, body


def _part(asked: str, fields: list[tuple[str, str]], body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """A range of a non-empty object: `bytes=2-5`, `bytes=2-` or `bytes=-4`."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    begin = int(first) if first else max(0, len(body) - int(last))
    end = min(int(last) + 1, len(body)) if first and last else len(body)
    if begin >= len(body):
        return "416 Requested Range Not Satisfiable", [("Content-Range", f"bytes */{len(body)}")], b""
    fields = [*fields, ("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}"), ("Accept-Ranges", "bytes")]
    return "206 Partial Content", fields, body[begin:end]


class EmulatedS3(S3Server):
    """Runs `Emulator` in a separate process."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.slow_store.emulator", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}

    def stop(self, patience_s: float = 30.0) -> None:
        """Ends the process with all objects: this emulator takes no signals."""
        self.close()

    def load(self, objects: Mapping[str, bytes]) -> None:
        """Stores objects beside moto's, by key."""
        items = iter(objects.items())
        while some := dict(islice(items, _AT_ONCE)):
            body = msgspec.msgpack.encode(some)
            urllib.request.urlopen(urllib.request.Request(self.endpoint + _LOAD, body, method="POST")).close()


if __name__ == "__main__":
    make_s3_server(int(sys.argv[1]), Emulator()).serve_forever()
