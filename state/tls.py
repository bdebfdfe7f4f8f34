"""TLS of connections: re-read certificates, accepted connections, and refusals in plain words.

Unusable files leave the previous certificate in use. asyncio's servers report neither failed handshakes nor peers
without TLS, hence `TlsListener`.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.errors import InvalidJob

log = logging.getLogger("barrier_runtime.tls")

_CLIENT_HELLO = 0x16  # first byte of TLS, and of no other protocol here
_ANSWER_BYTES = 64 * 1024  # of a request without TLS, read so that the answer arrives
_AGAIN_S = 1.0  # after a failed accept: no descriptor is free


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files. `ca`: authorities of peers, who are not asked for a certificate if empty.

    `certificate`: chain, and the key if `key` is empty.
    """

    certificate: str
    key: str = ""
    ca: str = ""

    def stamp(self) -> Hashable:
        """Differs after a change of the files. Raises `OSError` for a missing file."""
        found = [os.stat(name) for name in (self.certificate, self.key, self.ca) if name]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def load_into(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Raises `OSError` (`ssl.SSLError`, too) or `ValueError`."""
        context.load_cert_chain(self.certificate, self.key or None, _no_password)
        if self.ca:
            context.load_verify_locations(self.ca)
        return context


def context_of(pem: bytes) -> ssl.SSLContext:
    """On Linux, no killed process leaves the key on a disk.

    `ssl` reads keys from named files only. Raises `OSError` or `ValueError`.
    """
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as memory:
            memory.write(pem)
            return CertificateFiles(f"/proc/self/fd/{memory.fileno()}").load_into(server_context())
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700
        file = Path(folder) / "certificate.pem"
        file.write_bytes(pem)
        return CertificateFiles(str(file)).load_into(server_context())


def _no_password() -> str:
    raise ValueError("the key is encrypted: give a key without a password, in a file that only the owner can read")


class Certificates:
    """Made anew before a handshake if `stamp()` differs."""

    def __init__(self, said: str, stamp: Callable[[], Hashable], make: Callable[[], ssl.SSLContext]) -> None:
        """`said`: names the certificate in messages. Raises `InvalidJob`."""
        self._said, self._stamp, self._make = said, stamp, make
        self._trouble = ""  # of the last attempt to read the files
        try:
            self._stamped = stamp()
            self._context = make()
        except (OSError, ValueError) as error:
            raise InvalidJob(
                f"{said} cannot be used ({reason(error)}): give PEM files that this process can read"
            ) from error

    def context(self) -> ssl.SSLContext:
        trouble = ""
        try:
            stamped = self._stamp()
            if stamped != self._stamped:
                self._context, self._stamped = self._make(), stamped
                log.info("%s was read again", self._said)
        except (OSError, ValueError) as error:
            trouble = reason(error)
            if trouble != self._trouble:
                log.error("%s cannot be used (%s): the previous certificate stays in use", self._said, trouble)
        self._trouble = trouble
        return self._context


class PeerTls:
    """TLS 1.3 between processes with certificates of the same CA."""

    def __init__(self, files: CertificateFiles) -> None:
        said = f"the certificate {files.certificate} with the CA {files.ca}"
        self.files = files
        self.accepting = Certificates(said, files.stamp, self._for_accepting)
        self.connecting = Certificates(said, files.stamp, self._for_connecting)

    def _for_accepting(self) -> ssl.SSLContext:
        context = self.files.load_into(server_context(ssl.TLSVersion.TLSv1_3))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _for_connecting(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and host name
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return self.files.load_into(context)


def peer_tls(options: object, environment: Mapping[str, str]) -> PeerTls | None:
    """TLS between processes of a job; None if not wanted.

    `options` has the fields of `_FILES`; variables such as `BARRIER_RUNTIME_TLS_CA` take precedence.
    """
    certificate, key, ca = (
        environment.get(f"BARRIER_RUNTIME_{name.upper()}") or getattr(options, name) for name in _FILES
    )
    if not (certificate or key or ca):
        return None
    if not (certificate and ca):
        raise InvalidJob("tls_certificate= and tls_ca= belong together: give both, or neither and no tls_key=")
    return PeerTls(CertificateFiles(certificate, key, ca))


_FILES = ("tls_certificate", "tls_key", "tls_ca")


def server_context(oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = oldest
    return context


class TlsListener:
    def __init__(
        self,
        listening: socket.socket,
        certificates: Certificates,
        protocol: Callable[[], asyncio.BaseProtocol],
        refused: Callable[[object, str], None],
        *,
        timeout_s: float,
        most: int = 128,
        answer: bytes = b"",
    ) -> None:
        """`refused(peer, reason)` is called for each refusal.

        `most`: handshakes at a time; the oldest ends. `answer`: bytes for a peer without TLS.
        """
        self._listening = listening
        self._certificates = certificates
        self._protocol = protocol
        self._refused = refused
        self._timeout_s = timeout_s
        self._most = most
        self._answer = answer
        self._shaking: dict[asyncio.Task[None], socket.socket] = {}  # oldest first
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._listening,)

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._shaking:
            task.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._accepting, *self._shaking])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("no connection can be accepted (%s)", reason(error))
                await asyncio.sleep(_AGAIN_S)
                continue
            if len(self._shaking) >= self._most:
                await self._end_oldest()
            task = loop.create_task(self._shake_hands(connection, peer))
            self._shaking[task] = connection
            task.add_done_callback(lambda done: self._shaking.pop(done, None))
            await asyncio.sleep(0)  # `sock_accept` does not yield while connections wait

    async def _end_oldest(self) -> None:
        """Waits until the socket is closed; the loop forgets the descriptor first."""
        task, connection = next(iter(self._shaking.items()))
        with contextlib.suppress(OSError):  # the peer left
            connection.shutdown(socket.SHUT_RDWR)  # `wait_for` may lose a cancellation before Python 3.12
        task.cancel()
        await asyncio.wait([task])

    async def _shake_hands(self, connection: socket.socket, peer: object) -> None:
        accepted = False
        try:
            connection.setblocking(False)
            speaks_tls = await asyncio.wait_for(self._speaks_tls(connection), self._timeout_s)
            if speaks_tls:
                loop, context = asyncio.get_running_loop(), self._certificates.context()
                await loop.connect_accepted_socket(
                    self._protocol, connection, ssl=context, ssl_handshake_timeout=self._timeout_s
                )
                accepted = True
                return
            self._refused(peer, "the peer speaks without TLS, and this port requires TLS")
            await asyncio.wait_for(self._say_so(connection), self._timeout_s)
        except ssl.SSLError as error:
            self._refused(peer, f"TLS failed: {reason(error)}")
        except (OSError, asyncio.TimeoutError) as error:
            log.debug("connection from %s broke: %r", peer, error)
        finally:  # also when cancelled
            if not accepted:
                connection.close()

    async def _speaks_tls(self, connection: socket.socket) -> bool:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(connection)
        first = connection.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError("closed before the handshake")
        return first[0] == _CLIENT_HELLO

    async def _say_so(self, connection: socket.socket) -> None:
        """Waits for the peer's end: closing at once could remove the answer on the way."""
        if not self._answer:
            return
        loop = asyncio.get_running_loop()
        left = _ANSWER_BYTES - len(await loop.sock_recv(connection, _ANSWER_BYTES))
        await loop.sock_sendall(connection, self._answer)
        connection.shutdown(socket.SHUT_WR)
        while left and (received := await loop.sock_recv(connection, left)):
            left -= len(received)
            await asyncio.sleep(0)  # `sock_recv` does not yield while bytes wait


_CHECK_NAME = "use a name of the certificate, or a certificate with this name (subjectAltName)"
_VERIFY = {  # OpenSSL's X509_V_ERR_…
    9: "the peer's certificate is not valid yet: check the clocks of both hosts",
    10: "the peer's certificate has expired: renew the certificate on that host",
    62: f"the peer's certificate is for another host name: {_CHECK_NAME}",
    64: f"the peer's certificate is for another address: {_CHECK_NAME}",
}
_AUTHORITY = "the peer's certificate is not of a known authority: give both ends certificates of the CA in the CA file"
_OLD = "the other end speaks only another version of TLS: use TLS 1.3 at both ends"
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate: give all processes of the job certificates",
    "UNSUPPORTED_PROTOCOL": _OLD,
    "NO_PROTOCOLS_AVAILABLE": _OLD,
    "TLSV1_ALERT_PROTOCOL_VERSION": _OLD,
    "WRONG_VERSION_NUMBER": "the peer speaks without TLS, and this connection requires TLS",
    "HTTP_REQUEST": "the peer speaks without TLS, and this port requires TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "the other end does not know the authority of this process's certificate: use one CA",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this process's certificate has expired: renew the certificate on this host",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other end requires a certificate of this process",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end refuses this process's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end refuses this process's certificate",
    "KEY_VALUES_MISMATCH": "certificate and key do not belong together",
    "NO_CERTIFICATE_OR_CRL_FOUND": "the CA file has no certificate",
}


def reason(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, f"{_AUTHORITY} ({error.verify_message})")
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", str(error.reason or error))
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__
