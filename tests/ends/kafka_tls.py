"""A broker with a TLS listener behind a network that can cut off handshakes, as a restarting broker does."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from examples.servers import KafkaServer
from examples.servers.base import free_port


class Certificates:
    """An authority `ca`, the broker's key and certificate in one file, and another authority that signed no
    certificate.
    """

    def __init__(self, folder: Path) -> None:
        self.ca, self.other_ca, self.broker = (str(folder / name) for name in ("ca.pem", "other.pem", "broker.pem"))
        self._authority(folder, "ca")
        self._authority(folder, "other")
        key, request, certificate = (str(folder / f"broker.{end}") for end in ("key", "csr", "crt"))
        names = folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request)
        signing = ("-CA", self.ca, "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-days", "2")
        _openssl("x509", "-req", "-in", request, *signing, "-extfile", str(names), "-out", certificate)
        Path(self.broker).write_bytes(Path(key).read_bytes() + Path(certificate).read_bytes())

    @staticmethod
    def _authority(folder: Path, name: str) -> None:
        places = ("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", *places)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True)


class CutHandshakes:
    """A proxy before the broker. While `cut` is set, connections end within the handshake: `met` counts them."""

    def __init__(self) -> None:
        self.cut = False
        self.met = 0
        self.server_port = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listening)
        self.disconnect()

    def disconnect(self) -> None:
        while self._open:
            _end(self._open.pop())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.cut:
                client.recv(1 << 16)  # the client's first words
                self.met += 1
                _end(client)
                return
            server = socket.create_connection(("127.0.0.1", self.server_port))
            self._open += [client, server]
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            _copy(client, server)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _end(source)
    _end(target)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextlib.contextmanager
def tls_server(certificates: Certificates, network: CutHandshakes) -> Iterator[KafkaServer]:
    """A server whose clients connect through `network`; `bootstrap` is a listener without TLS, for the test itself."""
    server = KafkaServer({})
    network.server_port = free_port()
    controller = server._controller_port
    server.configure(
        listeners=f"PLAINTEXT://{server.bootstrap},SSL://127.0.0.1:{network.server_port},CONTROLLER://127.0.0.1:{controller}",
        advertised_listeners=f"PLAINTEXT://{server.bootstrap},SSL://{network.place}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
        inter_broker_listener_name="PLAINTEXT",
        ssl_keystore_type="PEM",
        ssl_keystore_location=certificates.broker,
    )
    try:
        server.start()
        yield server
    finally:
        server.close()
