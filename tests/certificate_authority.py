"""An authority that signs certificates of all kinds, and clients that show them."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
DAY = timedelta(days=1)
_USAGES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
_OF_AUTHORITIES: list[tuple[x509.ExtensionType, bool]] = [
    (x509.BasicConstraints(ca=True, path_length=None), True),
    (x509.KeyUsage(**{usage: usage == "key_cert_sign" for usage in _USAGES}), True),
]


class Authority:
    """``certificate`` is its own, in PEM form. ``parent`` signs it; without one it signs itself."""

    def __init__(self, name: str, parent: "Authority | None" = None) -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        signer = parent or self
        signed = _signed(self._name, self._key.public_key(), signer._name, signer._key, _OF_AUTHORITIES)
        self.certificate = signed.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        path: Path,
        *names: str,
        purposes: Sequence[x509.ObjectIdentifier] = (CLIENT,),
        until: datetime | None = None,
        chain: bytes = b"",
    ) -> Path:
        """Write a certificate with its key to ``path``, and return that. ``names``: ``URI:…``, ``DNS:…``, ``CN:…``.

        ``chain``: further certificates, in PEM form. ``until`` is aware.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        split = [name.partition(":")[::2] for name in names]
        common = [x509.NameAttribute(NameOID.COMMON_NAME, value) for kind, value in split if kind == "CN"]
        makers: dict[str, Any] = {
            "URI": x509.UniformResourceIdentifier,
            "DNS": x509.DNSName,
            "email": x509.RFC822Name,
            "IP": lambda value: x509.IPAddress(ip_address(value)),
        }
        alternatives = [makers[kind](value) for kind, value in split if kind != "CN"]
        extensions: list[tuple[x509.ExtensionType, bool]] = []
        if alternatives:
            extensions.append((x509.SubjectAlternativeName(alternatives), not common))
        if purposes:
            extensions.append((x509.ExtendedKeyUsage(purposes), False))
        signed = _signed(x509.Name(common), key.public_key(), self._name, self._key, extensions, until)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + signed.public_bytes(serialization.Encoding.PEM)
            + chain
        )
        return path

    def trusted(self, certificate: Path | None = None, **settings: Any) -> ssl.SSLContext:
        """Return the context of a client that trusts servers of this authority. It shows ``certificate``, if any."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        if certificate is not None:
            context.load_cert_chain(certificate)
        for name, value in settings.items():
            setattr(context, name, value)
        return context


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    until: datetime | None = None,
) -> x509.Certificate:
    until = until or datetime.now(UTC) + DAY
    # Python 3.13 and newer demand these.
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    extensions = [*extensions, (x509.SubjectKeyIdentifier.from_public_key(key), False), (signer, False)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - 2 * DAY)
        .not_valid_after(until)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())
