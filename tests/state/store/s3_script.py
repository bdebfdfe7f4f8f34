"""An S3 server on loopback with scripted answers that records its requests."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Script:
    """Answers in order, each with a status and an error code or body; the last answer repeats.

    A third element: the number of bytes after which the connection ends within the body. `None` closes the connection
    without an answer."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str] | tuple[int, str, int] | None] = [(200, "")]
        self.headers: dict[str, str] = {}  # added to every answer
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.requests.append((self.command, self.path, headers))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if answer is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, code, *sent = answer
                error = f"<Error><Code>{code}</Code><Message>m</Message></Error>"
                body = (code if code.startswith(("<", "{")) else error).encode() if code else b""
                part = status == 200 and "range" in headers
                self.send_response(206 if part else status)
                if part:
                    self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", '"tag"')
                self.send_header("Last-Modified", "Sat, 28 Nov 2026 12:00:00 GMT")
                for name, value in script.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: sent[0]] if sent else body)
                if sent:
                    self.close_connection = True

            do_PUT = do_GET = do_HEAD = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                """Logs nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
