"""A folder as an S3 bucket that answers late: listings and ranges, read-only, as a process.

    python -m benchmarks.slow_store.ranges FOLDER 9000 --delay 30 --log requests.jsonl

Emulator and proxy use more processor time for a large file than the job that reads it, on the same two cores. This
server hands bytes of mapped files to the kernel, so that cells of reading measure the reader.
"""

import argparse
import asyncio
import hashlib
import mmap
import random
import time
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvloop

from benchmarks.slow_store.delay import Delay
from benchmarks.slow_store.messages import fields_of, operation
from benchmarks.slow_store.proxy import add_delay, delay_of
from benchmarks.slow_store.requests import Request, encoded

BUCKET = "files"
_END = b"\r\n\r\n"


class MappedFiles:
    """The files of a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._date = formatdate(time.time(), usegmt=True)
        self._iso = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        self._bytes: dict[str, memoryview] = {}
        for file in sorted(folder.iterdir()):
            with file.open("rb") as opened:
                self._bytes[file.name] = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))

    def answer(self, head: bytes) -> tuple[int, list[bytes | memoryview]]:
        """Status and parts of the answer to a request."""
        method, target = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")[:2]
        asked, key = parse_qs(urlsplit(target).query), operation(head)[1]
        if method == "GET" and "list-type" in asked:
            return _answer(200, [], self._listing(asked.get("prefix", [""])[0]))
        data = self._bytes.get(key)
        if data is None or method not in ("GET", "HEAD"):
            body = b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code><Message>no such file</Message></Error>"
            return _answer(404, [], body)
        fields = [f'ETag: "{_etag(key)}"', f"Last-Modified: {self._date}", "Accept-Ranges: bytes"]
        if method == "HEAD":
            return _answer(200, [*fields, f"Content-Length: {len(data)}"], None)
        given = fields_of(head).get(b"range")
        if given is None:
            return _answer(200, fields, data)
        first, _, last = given.decode().removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        if begin >= len(data):
            return _answer(416, [f"Content-Range: bytes */{len(data)}"], b"")
        return _answer(206, [*fields, f"Content-Range: bytes {begin}-{end - 1}/{len(data)}"], data[begin:end])

    def _listing(self, prefix: str) -> bytes:
        """All files in a single page."""
        found = [
            f"<Contents><Key>{name}</Key><LastModified>{self._iso}</LastModified><ETag>&quot;{_etag(name)}&quot;</ETag>"
            f"<Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for name, data in self._bytes.items()
            if name.startswith(prefix)
        ]
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(found)}</KeyCount><MaxKeys>{len(found)}"
            f"</MaxKeys><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>"
        ).encode()


def _etag(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def _answer(status: int, fields: list[str], body: "bytes | memoryview | None") -> tuple[int, list[bytes | memoryview]]:
    """An answer; `body` None: `fields` have the length."""
    length = [] if body is None else [f"Content-Length: {len(body)}"]
    head = "\r\n".join([f"HTTP/1.1 {status} _", *fields, *length, "x-amz-request-id: 0"]).encode("latin-1") + _END
    return status, [head, *([] if body is None else [body])]


class _Connection(asyncio.Protocol):
    """Sequential requests without bodies."""

    def __init__(self, files: MappedFiles, delay: Delay, source: random.Random, log: Any) -> None:
        self._files = files
        self._delay = delay
        self._source = source
        self._log = log
        self._begun = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._begun += data
        while _END in self._begun:
            head, _, self._begun = self._begun.partition(_END)
            at, late_s = time.time(), self._delay.draw_s(self._source)
            asyncio.get_running_loop().call_later(late_s, self._answer, head + _END, at)

    def _answer(self, head: bytes, at: float) -> None:
        if self._transport.is_closing():
            return
        status, parts = self._files.answer(head)
        for part in parts:
            self._transport.write(part)
        sent = sum(len(part) for part in parts[1:])
        name, key = operation(head)
        self._log.write(encoded(Request(at, name, key, status, 0, sent, round((time.time() - at) * 1000, 2))))


async def serve(folder: Path, port: int, delay: Delay, log: Path) -> None:
    """Serves until the process ends."""
    files, source = MappedFiles(folder), random.Random(f"ranges-{port}")
    with log.open("ab", buffering=0) as written:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(files, delay, source, written), "127.0.0.1", port, backlog=512
        )
        await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    add_delay(parser)
    parser.add_argument("--log", type=Path, default=Path("requests.jsonl"), help="of requests (%(default)s)")
    chosen = parser.parse_args(arguments)
    uvloop.run(serve(chosen.folder, chosen.port, delay_of(chosen), chosen.log))


if __name__ == "__main__":
    main()
