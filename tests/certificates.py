"""Self-signed certificates for servers and clients of tests; openssl makes them, so their tests are no pure ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEADLINE_S = 10.0


def certificate(folder: Path, name: str) -> None:
    """`<name>.pem`, self-signed for loopback, and `<name>.key`."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True, timeout=DEADLINE_S)
