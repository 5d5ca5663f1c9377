"""Certificates for tests: an authority of one's own, and what it signs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from lodefs.proxy.peers.security.tls import TlsFiles

DAY = dt.timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "cluster") -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        self.pem = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    def issue(
        self,
        *,
        days: int = 1,
        begin_days: int = -10,
        usages: tuple[ObjectIdentifier, ...] = BOTH,
    ) -> tuple[bytes, bytes]:
        """A certificate that begins and ends in so many days, and its key; PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        cert = (
            x509.CertificateBuilder()
            .subject_name(_name("node"))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin_days * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return cert.public_bytes(serialization.Encoding.PEM), key_pem(key)

    def files(self, directory: Path, *, days: int = 1, **options: object) -> TlsFiles:
        """Files of a node with a new certificate of this authority."""
        directory.mkdir(parents=True, exist_ok=True)
        return write(directory, *self.issue(days=days, **options), self.pem)  # type: ignore[arg-type]


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    """A private key as PEM."""
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def write(directory: Path, cert: bytes, key: bytes, ca: bytes) -> TlsFiles:
    """The files in a directory; the key is for its owner only."""
    files = TlsFiles(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
    for path, data in ((files.cert, cert), (files.key, key), (files.ca, ca)):
        path.write_bytes(data)
        path.chmod(0o600)
    return files
