"""A gateway that translates obstore's requests to Google Cloud Storage for fake-gcs-server, which lacks some of them.

obstore writes by the XML interface (`PUT /bucket/object`, copies, uploads in parts). fake-gcs-server has the XML
interface for reads, lists and deletes; for uploads the server has the JSON interface, with the same conditions. This
gateway translates the former into the latter. The gateway decides nothing: fake-gcs-server determines whether an object
exists, and the object's generation and ETag. The gateway only keeps the parts of uploads until they are complete.
"""

import http.client
import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

_TIMEOUT_S = 60


class Gateway(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server_port: int) -> None:
        """To the server that listens on `server_port`."""
        super().__init__(("127.0.0.1", 0), _Request)
        self.server_at = server_port
        self.uploads: dict[str, dict[int, bytes]] = {}  # in parts, by id
        self._serving = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self._serving.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self._serving.join()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        bucket, _, name = (unquote(part) for part in url.path[1:].partition("/"))
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        try:
            if "uploads" in query:
                self._begin_parts(bucket, name)
            elif "uploadId" in query:
                self._part(bucket, name, query, body)
            elif self.command == "PUT":
                self._put(bucket, name, body)
            else:
                self._pass_on(body)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # the server is away: so is the gateway
            self.connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    # ---- uploads

    def _put(self, bucket: str, name: str, body: bytes) -> None:
        condition = self.headers.get("x-goog-if-generation-match")
        asked = f"ifGenerationMatch={condition}" if condition is not None else ""
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            self._upload(bucket, name, body, asked)
            return
        from_bucket, _, from_name = unquote(source).strip("/").partition("/")
        old, new = quote(from_name, safe=""), quote(name, safe="")
        path = f"/storage/v1/b/{from_bucket}/o/{old}/rewriteTo/b/{bucket}/o/{new}?{asked}"
        status, _, answer = self._ask("POST", path, b"", {"Content-Type": "application/json"})
        self._answer_stored(status, answer, "resource")

    def _upload(self, bucket: str, name: str, body: bytes, asked: str = "") -> None:
        """Uploads an object, the description first: without a description the server forgets the condition."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart&{asked}"
        kind = self.headers.get("Content-Type") or "application/octet-stream"
        edge = f"--{uuid.uuid4().hex}"
        head = f"{edge}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': name})}\r\n"
        content = f"{head}{edge}\r\nContent-Type: {kind}\r\n\r\n".encode() + body + f"\r\n{edge}--\r\n".encode()
        related = f"multipart/related; boundary={edge[2:]}"
        status, _, answer = self._ask("POST", path, content, {"Content-Type": related})
        self._answer_stored(status, answer)

    def _answer_stored(self, status: int, answer: bytes, within: str = "") -> None:
        if status != 200:
            self._answer(status, {}, answer)
            return
        stored = json.loads(answer)
        stored = stored[within] if within else stored
        etag, generation = stored["etag"], stored["generation"]
        result = b"<CopyObjectResult/>" if within else b""
        if self.headers.get("x-goog-copy-source") is None and self.command == "POST":
            result = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>".encode()
        self._answer(200, {"ETag": etag, "x-goog-generation": generation}, result)

    def _begin_parts(self, bucket: str, name: str) -> None:
        upload = uuid.uuid4().hex
        self.server.uploads[upload] = {}
        found = f"<Bucket>{bucket}</Bucket><Key/><UploadId>{upload}</UploadId>"
        self._answer(200, {}, f"<InitiateMultipartUploadResult>{found}</InitiateMultipartUploadResult>".encode())

    def _part(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> None:
        parts = self.server.uploads.get(query["uploadId"])
        if parts is None:
            self._answer(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>")
        elif self.command == "PUT":
            parts[int(query["partNumber"])] = body
            self._answer(200, {"ETag": f'"{query["partNumber"]}"'}, b"")
        elif self.command == "DELETE":
            del self.server.uploads[query["uploadId"]]
            self._answer(204, {}, b"")
        else:
            wanted = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
            self._upload(bucket, name, b"".join(parts[number] for number in wanted))
            del self.server.uploads[query["uploadId"]]

    # ---- other requests

    def _pass_on(self, body: bytes) -> None:
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "connection")}
        status, found, answer = self._ask(self.command, self.path, body, headers)
        wanted = self.headers.get("If-Match")  # the server knows no such condition
        if wanted is not None and status < 300 and found.get("ETag", found.get("Etag")) != wanted:
            self._answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self._answer(status, found, answer)

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_at, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        for key, value in headers.items():
            if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(key, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
