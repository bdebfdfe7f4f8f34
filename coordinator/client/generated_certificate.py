"""Certificate of a daemon that has none, self-signed with a key that daemon and clients derive from the token.

So no file is distributed, daemons that stand by for each other have the same key, and host names and dates need not
agree.
"""

import base64
import datetime
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # order of curve P-256
_LASTS = datetime.timedelta(days=397)  # browsers accept no longer time
_CLOCKS_APART = datetime.timedelta(days=1)


def certificate_pem(token: str, hosts: Iterable[str], now: datetime.datetime) -> bytes:
    key = _private_key(token)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "barrier-runtime")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys(hosts)]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    private: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public: bytes = certificate.public_bytes(Encoding.PEM)
    return public + private


def is_of_token(certificate: bytes, token: str) -> bool:
    """`certificate`: DER, whose key the TLS handshake has proven."""
    try:
        found = x509.load_der_x509_certificate(certificate).public_key()
    except ValueError:
        return False
    return hmac.compare_digest(_public(found), _public(_private_key(token).public_key()))


def pin(token: str) -> str:
    """Returns the pin for `curl --pinnedpubkey`."""
    digest = hashlib.sha256(_public(_private_key(token).public_key())).digest()
    return f"sha256//{base64.b64encode(digest).decode()}"


def _private_key(token: str) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(hmac.digest(token.encode(), b"barrier-runtime https key", "sha512"), "big")
    return ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
