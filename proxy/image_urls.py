"""The image URLs that may reach an engine, which fetches them: `data:` URLs, and URLs of the hosts in `POLAR_IMAGE_HOSTS`.

Whoever has a session's key could otherwise have the engine read its own files, its cloud's metadata or its network. Images are all that
dialects carry by URL: of audio, video and documents no URL reaches an engine other than as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from proxy.chat import ChatRequest, ImagePart
from proxy.dialects.codec import invalid
from topics.types.allowed_hosts import AllowedHost, canonical_host
from topics.types.errors import InputError

SETTING = "POLAR_IMAGE_HOSTS"
URL = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?(?:[/?][!-\[\]-~]*)?", re.IGNORECASE)
"""Stricter than any client's: without user info, blanks and backslashes, in which parsers find different hosts."""
PORTS = {"http": 80, "https": 443}
SHOWN = 100
"""Characters of a refused URL in its error."""
_json = msgspec.json.Decoder()


class ImageHosts:
    """The hosts that images may be fetched from."""

    def __init__(self, setting: str) -> None:
        """`setting`: hosts, separated by commas: `host`, `*.host`, each with a port if it isn't the scheme's, `http://host` for plain HTTP.

        Raises InputError.
        """
        self._hosts = [_parsed(entry.strip()) for entry in setting.split(",") if entry.strip()]

    def require(self, request: ChatRequest, body: bytes) -> None:
        """Raises RefusalError for the first image at a URL that isn't allowed, naming its field in the request's body."""
        for url in _image_urls(request):
            if not self._allows(url):
                field = _path(_json.decode(body), url)
                raise invalid(
                    field,
                    f"an image must be a data: URL, or an https URL of a host that this proxy's {SETTING} names; got {url[:SHOWN]!r}",
                )

    def _allows(self, url: str) -> bool:
        if url[:5].lower() == "data:":
            return True
        found = URL.fullmatch(url)
        if found is None:
            return False
        scheme = found[1].lower()
        try:
            host = canonical_host(found[2])
        except ValueError:
            return False
        port = int(found[3] or PORTS[scheme])
        return any(scheme == allowed and entry.allows(host, port) for allowed, entry in self._hosts)


def _parsed(text: str) -> tuple[str, AllowedHost]:
    """The scheme and the host of an entry."""
    scheme, mark, host = text.rpartition("://")
    try:
        if mark and scheme not in PORTS:
            raise ValueError("expected no scheme, https:// or http://")
        entry = AllowedHost.parse(host)
        if entry.is_private:
            raise ValueError("!private means nothing here: engines resolve the names themselves")
    except ValueError as error:
        raise InputError(SETTING, text, f"{error}; an entry is a host, *.host, host:port or http://host") from None
    scheme = scheme or "https"
    return scheme, AllowedHost(entry.host, entry.port or PORTS[scheme], entry.is_wildcard)


def _image_urls(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        if isinstance(message.content, list):
            yield from (part.image_url.url for part in message.content if isinstance(part, ImagePart))


def _path(body: Any, url: str) -> str:
    """The path of the first value in a body that is this text; `messages` if there is none."""
    pending: list[tuple[str, Any]] = [("", body)]
    while pending:
        path, value = pending.pop()
        if value == url:
            return path
        inner: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            inner = [(f"{path}.{name}" if path else str(name), one) for name, one in value.items()]
        elif isinstance(value, list):
            inner = [(f"{path}[{at}]", one) for at, one in enumerate(value)]
        pending += reversed(inner)
    return "messages"
