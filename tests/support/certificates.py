"""Certificates for tests, made by openssl: authorities, and what they have signed for 127.0.0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SECONDS = 60
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(directory: Path, name: str) -> None:
    """`name.pem` and `name.key` of an authority of its own."""
    _openssl(
        directory,
        *("req", "-x509", *_NEW_KEY, "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"),
    )


def make_certificate(directory: Path, authority: str, name: str) -> None:
    """`name.pem` and `name.key`, signed by an authority in the same directory."""
    _openssl(
        directory,
        *("req", *_NEW_KEY, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
    )
    _openssl(
        directory,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"),
        *("-CAcreateserial", "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.pem"),
    )


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=_SECONDS)
