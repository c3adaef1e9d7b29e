"""A server's address, as users write it: one for all that a client asks there. Needs no torch."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from edgespec.errors import OptionError

ENCRYPTED = {"http": False, "ws": False, "https": True, "wss": True}
WRITE = "write http://HOST:PORT, or https"


@dataclass(frozen=True)
class Purpose:
    """What a server is asked to do.

    path: of the WebSocket. does: it, in words. server, key, ca: the options that name it, the key, and the
    certificates to trust.
    """

    path: str
    does: str
    server: str = "server"
    key: str = "key"
    ca: str = "ca"


VERIFY = Purpose("/v1/edgespec/verify", "verifies")
DRAFT = Purpose("/v1/edgespec/draft", "drafts", "draft_server", "draft_key_file", "draft_ca")


@dataclass(frozen=True)
class Address:
    """port: None = that of the scheme. base: of all paths there, "" mostly."""

    encrypted: bool
    host: str
    port: int | None
    base: str

    @property
    def near(self) -> bool:
        """It is this machine, and nobody between can read what is sent."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def url(self, scheme: str) -> str:
        """scheme: http or ws, of what is not encrypted."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{scheme}{'s' if self.encrypted else ''}://{host}{port}{self.base}"

    @property
    def other_scheme(self) -> str:
        """Advice, where what answers seems to be no server of this scheme."""
        what, scheme = ("does not encrypt", "http") if self.encrypted else ("encrypts", "https")
        return f"if that server {what}, write {scheme}://"


def address_of(url: str, option: str = VERIFY.server) -> Address:
    """Of http://HOST:PORT, https, ws or wss, or HOST:PORT, which is http; with or without the path /v1, or
    one of `Purpose`. option: that it is the value of. Raises OptionError."""
    full = url if "://" in url else f"http://{url}"
    if "@" in re.split(r"[/?#]", full.partition("://")[2])[0]:  # not shown: it may be a password
        raise OptionError(f"{option}: nobody uses the name or password in its URL; name a key", option)
    try:
        parts = urlsplit(full)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        raise OptionError(f"{option} {url!r} is no URL: {error}; {WRITE}", option) from None
    if parts.scheme not in ENCRYPTED or not host or parts.query or parts.fragment:
        raise OptionError(f"{option} {url!r} is no URL of a server; {WRITE}", option)
    if re.search(r"\s", full) or not full.isprintable():
        raise OptionError(f"{option} {url!r} is no URL: it has spaces or control characters; {WRITE}", option)
    base = parts.path.rstrip("/").removesuffix(VERIFY.path).removesuffix(DRAFT.path).removesuffix("/v1")
    return Address(ENCRYPTED[parts.scheme], host, port, base.rstrip("/"))
