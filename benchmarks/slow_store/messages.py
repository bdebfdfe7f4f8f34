"""HTTP messages in a byte stream: ends of heads and bodies, and the kind of a request."""

from urllib.parse import unquote

_END = b"\r\n\r\n"
_NO_BODY = (b" 204", b" 304")


class Message:
    """An HTTP/1.1 message, fed as bytes arrive.

    `head` is empty until the head is complete; `done` is true after the last byte of the body. `answers` is the method
    of the request that a response answers, and empty for a request."""

    def __init__(self, answers: str = "") -> None:
        self.head = b""
        self.done = False
        self._answers = answers
        self._begun = b""
        self._left = 0  # bytes of the body, or of a chunk; below 0: until the connection ends
        self._chunked = False
        self._last_chunk = False
        self._line = b""

    @property
    def interim(self) -> bool:
        """Whether the message is a response 1xx, before the response itself."""
        return self.head[8:10] == b" 1"

    @property
    def until_close(self) -> bool:
        return self._left < 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """(Bytes of the body, bytes after the message)."""
        if not self.head:
            self._begun += data
            end = self._begun.find(_END)
            if end < 0:
                return b"", b""
            self.head, data = self._begun[: end + len(_END)], self._begun[end + len(_END) :]
            self._frame()
        if self.done:
            return b"", data
        taken = self._chunks(data) if self._chunked else self._bytes(data)
        return data[:taken], data[taken:]

    def _frame(self) -> None:
        fields = fields_of(self.head)
        if self._answers == "HEAD" or self.interim or (self._answers and self.head[8:12] in _NO_BODY):
            self.done = True
        elif fields.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._chunked = True
        elif b"content-length" in fields:
            self._left = int(fields[b"content-length"])
            self.done = self._left == 0
        elif self._answers:
            self._left = -1
        else:
            self.done = True

    def _bytes(self, data: bytes) -> int:
        if self._left < 0:
            return len(data)
        taken = min(self._left, len(data))
        self._left -= taken
        self.done = self._left == 0
        return taken

    def _chunks(self, data: bytes) -> int:
        at = 0
        while at < len(data) and not self.done:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                return len(data)
            line, at = (self._line + data[at:end]).strip(), end + 1
            self._line = b""
            if self._last_chunk:
                self.done = not line  # after the trailers
            elif size := int(line.split(b";")[0], 16):
                self._left = size + 2
            else:
                self._last_chunk = True
        return at


def fields_of(head: bytes) -> dict[bytes, bytes]:
    """Fields by name in lower case."""
    found = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name:
            found[name.strip().lower()] = value.strip()
    return found


def without(head: bytes, *names: bytes) -> bytes:
    """The head without these fields; names are in lower case."""
    lines = head[: -len(_END)].split(b"\r\n")
    kept = [line for line in lines[1:] if line.partition(b":")[0].strip().lower() not in names]
    return b"\r\n".join([lines[0], *kept]) + _END


def operation(head: bytes) -> tuple[str, str]:
    """(S3 operation, key) of a path-style request. The key of a listing is the prefix."""
    method, target = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")[:2]
    path, _, query = target.partition("?")
    key = unquote(path.lstrip("/").partition("/")[2])
    asked = dict(part.partition("=")[::2] for part in query.split("&") if part)
    fields = fields_of(head)
    if method == "GET" and not key:
        return "LIST", unquote(asked.get("prefix", ""))
    if method == "POST":
        return ("DELETE MANY" if "delete" in asked else "START PARTS" if "uploads" in asked else "COMPLETE"), key
    if "uploadId" in asked:
        return {"PUT": "PART", "DELETE": "ABORT"}.get(method, method), key
    if method == "PUT" and b"x-amz-copy-source" in fields:
        return "COPY", key
    if method == "PUT" and (b"if-none-match" in fields or b"if-match" in fields):
        return "PUT IF", key
    return method, key
