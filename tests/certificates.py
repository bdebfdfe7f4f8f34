"""Certificates for tests: an authority of the test, and certificates with a fault each."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Issued:
    certificate: Path
    key: Path

    def replace(self, other: "Issued") -> None:
        """Renews these files, each at once, as certificate managers do."""
        for own, new in ((self.key, other.key), (self.certificate, other.certificate)):
            new.rename(own)


class Authority:
    def __init__(self, folder: Path, name: str = "authority", *, key_usage: bool = True) -> None:
        """`key_usage`: as RFC 5280 requires of an authority; older authorities have none."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._number = 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            self._builder(self._name, self._key, now - _DAY, now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        )
        if key_usage:
            builder = builder.add_extension(_SIGNS, True)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, *hosts: str, expired: bool = False) -> Issued:
        """Certificate and key for `hosts`, by default 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.timezone.utc)
        until = now - _DAY if expired else now + 20 * _DAY
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a process")])
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts or ("127.0.0.1",)])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(name, key, now - 10 * _DAY, until)
            .add_extension(names, False)
            .add_extension(issuer, False)
            .sign(self._key, hashes.SHA256())
        )
        self._number += 1
        issued = Issued(*(self._folder / f"{self._number}.{kind}" for kind in ("crt", "key")))
        issued.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        issued.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return issued

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime.datetime, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
