"""Whose certificates a client believes. Needs no torch."""

from __future__ import annotations

import ssl

from edgespec.errors import OptionError

UNTRUSTED = "the certificate of the server at {url} is not trusted: {why}; name one that is with {ca}=FILE"


def trusting(ca: str | None, option: str = "ca") -> ssl.SSLContext:
    """Checks a server's certificate, and its name, against those in the file `ca`; None: the system's.
    option: that says so. Raises OptionError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"{option} {ca!r} is no file of certificates: {error}", option) from None
