"""How a client knows the daemon of an https URL.

By default the certificate must have the key that is derived from the token, or else be of an authority of the system
for the host of the URL. With `ca` the certificate must be of an authority in that file for the host of the URL. With
`certificate` the daemon must have exactly the first certificate of that file, for any host and also when expired.
"""

import hmac
import http.client
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.hosts import shown
from barrier_runtime.state.tls import CertificateFiles, Certificates, reason

GENERATED = "generated"  # instead of a file: the certificate of the token's key


def given_certificate(https: str) -> Path | None:
    """Returns the file of a daemon's option `https`; None for HTTP or a generated certificate."""
    return None if https in ("", GENERATED) else Path(https)


@dataclass(frozen=True)
class Trust:
    """PEM files, at most one: `ca` with authorities, `certificate` with that of the daemon."""

    ca: str = ""
    certificate: str = ""


class HttpsConnections:
    def __init__(self, token: str, trust: Trust) -> None:
        self._token = token
        self._trust = trust
        self._pinned: bool | None = None  # whether the daemon had the token's key last; None: unknown
        self._of_files: Certificates | None = None
        self._expected = b""
        file, make = (trust.ca, self._by_authority) if trust.ca else (trust.certificate, self._by_certificate)
        if file:
            self._of_files = Certificates(f"the certificates of {file}", CertificateFiles(file).stamp, make)

    def open(self, host: str, port: int, timeout_s: float) -> http.client.HTTPSConnection:
        """Raises `Unavailable` for a certificate that is not trusted, `OSError` without an answer."""
        try:
            return self._open(host, port, timeout_s)
        except ssl.SSLError as error:
            remedy = "" if self._trust.ca else ", or give its CA file (--ca, ca=)"
            raise Unavailable(f"{_not_trusted(host, port)}: {reason(error)}{remedy}") from error

    def _open(self, host: str, port: int, timeout_s: float) -> http.client.HTTPSConnection:
        if self._of_files is not None:
            connection = _connected(host, port, timeout_s, self._of_files.context())
            if self._expected and not hmac.compare_digest(_certificate(connection), self._expected):
                connection.close()
                raise Unavailable(
                    f"{_not_trusted(host, port)}: the daemon has another certificate than the first of "
                    f"{self._trust.certificate}: give the CA file of the daemon (--ca, ca=)"
                )
            return connection
        if self._pinned is not False:
            connection = _connected(host, port, timeout_s, _unverified())
            if self._is_pinned(connection):
                self._pinned = True
                return connection
            connection.close()
        self._pinned = None
        connection = _connected(host, port, timeout_s, ssl.create_default_context())
        self._pinned = False
        return connection

    def _is_pinned(self, connection: http.client.HTTPSConnection) -> bool:
        from barrier_runtime.coordinator.client.generated_certificate import is_of_token

        return is_of_token(_certificate(connection), self._token)

    def _by_authority(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._trust.ca)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may have the daemon's own certificate
        # Python >= 3.13 sets this flag, which refuses many companies' authorities: those without keyUsage.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def _by_certificate(self) -> ssl.SSLContext:
        found = _FIRST.search(Path(self._trust.certificate).read_text(encoding="latin-1"))
        if found is None:
            raise ValueError("the file has no certificate")
        self._expected = ssl.PEM_cert_to_DER_cert(found[0])
        return _unverified()


_FIRST = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def _not_trusted(host: str, port: int) -> str:
    return f"https://{shown(host, port)} is not trusted"


def _certificate(connection: http.client.HTTPSConnection) -> bytes:
    return connection.sock.getpeercert(binary_form=True) or b""


def _connected(host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def _unverified() -> ssl.SSLContext:
    """For a certificate that is compared after the handshake, before anything is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
