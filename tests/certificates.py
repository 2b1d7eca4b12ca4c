"""A certificate of our own, which nobody else trusts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .conftest import need


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1 and localhost, signed by itself."""
    openssl = need("openssl", "no certificate can be made for TLS")
    key, found = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key),
         "-out", str(found)],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, found


def tls_options(key: Path, found: Path, port: int) -> tuple[str, ...]:
    """What a server needs to speak TLS on a port of its own."""
    return (
        "--tls-port", str(port), "--tls-cert-file", str(found), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(found), "--tls-auth-clients", "no",
    )  # fmt: skip
