"""The server's certificate: all that can be wrong with its files is said before a model is loaded."""

from __future__ import annotations

import ssl
from pathlib import Path

from edgespec.errors import OptionError


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Of a server with these PEM files (a key may be in the certificate's), TLS 1.2 or later; None = none is
    given. Raises OptionError."""
    if certificate is None:
        if key is not None:
            raise OptionError("--ssl-keyfile is of no use without --ssl-certfile; give both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for option, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key or certificate)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise OptionError(f"{option} {path} cannot be read: {error.strerror}") from None
    asked: list[bool] = []

    def password() -> bytes:  # else OpenSSL asks at the terminal, and a service's waits for ever
        asked.append(True)
        return b""

    try:
        context.load_cert_chain(certificate, key, password)
    except (OSError, ValueError) as error:
        where = f"{certificate}" if key is None else f"{certificate} and {key}"
        if asked:
            raise OptionError(
                f"the key in {key or certificate} is encrypted; write it unencrypted, readable by its owner "
                "only: openssl pkey -in KEY -out FILE"
            ) from None
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise OptionError(f"the key in {key or certificate} is not that of {certificate}") from None
        missing = "; the key has a file of its own? name it with --ssl-keyfile" if key is None else ""
        raise OptionError(f"{where}: no certificate and key in PEM: {error}{missing}") from None
    return context
