"""What the name of an image in a task stands for on this worker: a registry's image, or a path of the worker's disk.

Tasks aren't trusted. A name that the worker's `[images]` doesn't list can only mean an image of a well-known public registry: with any
other registry, a task could reach hosts inside the worker's network, and with a path it could read the worker's disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from topics.types.errors import InputError
from topics.types.runtime import IMAGE_NAME_LIMIT

FIELD = "runtime.image"
PUBLIC = frozenset(
    {
        *("docker.io", "ghcr.io", "quay.io", "gcr.io", "public.ecr.aws", "mcr.microsoft.com", "registry.k8s.io"),
        *("registry.gitlab.com", "nvcr.io"),
    }
)
"""Registries whose images any task may name; and those below `.pkg.dev`, which are Google's."""
_PUBLIC_BELOW = ".pkg.dev"
WILDCARD = "/*"
PATH_LIMIT = 4096
REPOSITORY_LIMIT = 255
"""Characters of a reference without tag and digest (distribution's reference package, NameTotalLengthMax)."""

# The grammar of github.com/distribution/reference.
_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]{{1,5}})?"
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_SUFFIX = r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
_REFERENCE = re.compile(rf"(?P<path>{_PATH_PART}(?:/{_PATH_PART})*){_SUFFIX}", re.ASCII)
_ANY_DOMAIN = re.compile(_DOMAIN, re.ASCII)
_IDENTIFIER = re.compile(r"[0-9a-f]{64}")
_PRINTABLE = re.compile(r"[^\x00-\x20\x7f-\x9f\s]+")

DEFAULT_REGISTRY = "docker.io"
_PATHS = ("oci", "oci-archive", "docker-archive")
_EXPECTED = (
    "must be docker://REFERENCE, REFERENCE, http://HOST[:PORT]/REFERENCE, oci:/FOLDER[:TAG], oci-archive:/FILE or "
    "docker-archive:/FILE, without spaces"
)


@dataclass(frozen=True)
class Source:
    """Where an image comes from."""

    location: str
    """As skopeo spells it: `docker://docker.io/library/python:3.12`, `oci:/images/agent:latest`, …"""
    is_path: bool = False
    """On the worker's disk."""
    has_tls: bool = True
    """False: the registry speaks plain HTTP."""

    @property
    def key(self) -> str:
        """A text that no other source has."""
        return self.location if self.has_tls else f"http:{self.location}"


@dataclass(frozen=True)
class _Reference:
    domain: str
    path: str
    tag: str
    digest: str

    @property
    def text(self) -> str:
        # A digest makes the tag meaningless, and skopeo refuses both.
        suffix = f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}"
        return f"{self.domain}/{self.path}{suffix}"


def resolve(name: str, names: Mapping[str, str], *, trusts_tasks: bool) -> Source:
    """What `name` stands for, by the worker's `[images]`. Raises InputError for the name, and for a value of `names`."""
    if len(name) > IMAGE_NAME_LIMIT or not _PRINTABLE.fullmatch(name):
        raise InputError(
            FIELD, name, f"must be the name of an image: at most {IMAGE_NAME_LIMIT} characters, without spaces"
        )
    if (value := names.get(name)) is not None:
        return parse(value, _setting(name))
    prefixes = [key for key in names if key.endswith(WILDCARD) and name.startswith(key[:-1])]
    if prefixes:
        return _below(name, max(prefixes, key=len), names)
    reference = _parsed(name)
    if reference is None:
        raise InputError(
            FIELD,
            name,
            "is no reference to a registry's image, like python:3.12-slim; a path or another kind of source needs an entry "
            "in [images] of the workers' polar.toml",
        )
    domain = reference.domain
    if not trusts_tasks and domain not in PUBLIC and not domain.endswith(_PUBLIC_BELOW):
        raise InputError(
            FIELD,
            name,
            f"is on {domain}, which is none of the public registries that every task may use; add the name to [images] of "
            "the workers' polar.toml, because a task could otherwise reach hosts inside the workers' network",
        )
    return Source(f"docker://{reference.text}")


def check(names: Mapping[str, str]) -> None:
    """Raises InputError for an entry of `[images]` that no name could use."""
    for key, value in names.items():
        if key.endswith(WILDCARD) != value.endswith(WILDCARD):
            raise InputError(_setting(key), value, f"a name and its source must both end with {WILDCARD}, or neither")
        parse(value.removesuffix(WILDCARD) + "/x" if key.endswith(WILDCARD) else value, _setting(key))


def parse(value: str, field: str) -> Source:
    """The source that a value of `[images]` names. Raises InputError for `field`."""
    if len(value) > PATH_LIMIT or not _PRINTABLE.fullmatch(value):
        raise InputError(field, value, _EXPECTED)
    transport, _, rest = value.partition(":")
    if transport in _PATHS:
        if not PurePosixPath(rest).is_absolute():
            raise InputError(field, value, "must name an absolute path")
        return Source(value, is_path=True)
    has_tls = not value.startswith("http://")
    text = value.removeprefix("docker://") if has_tls else value.removeprefix("http://")
    reference = _parsed(text, has_domain=not has_tls)
    if reference is None:
        raise InputError(field, value, _EXPECTED)
    return Source(f"docker://{reference.text}", has_tls=has_tls)


def _below(name: str, key: str, names: Mapping[str, str]) -> Source:
    """The source of a name below the prefix `key`."""
    value, rest = names[key], name[len(key) - 1 :]
    found = _REFERENCE.fullmatch(rest)
    if found is None:
        raise InputError(FIELD, name, f"must go on as a registry's reference does behind {key[:-1]}, like python:3.12")
    if value.partition(":")[0] in _PATHS and found["digest"]:
        raise InputError(FIELD, name, f"can't have a digest: [images] of the workers maps {key} to a path")
    if not value.endswith(WILDCARD):
        raise InputError(_setting(key), value, f"must end with {WILDCARD}, as its name does")
    return parse(value[:-1] + rest, _setting(key))


def _parsed(text: str, *, has_domain: bool = False) -> _Reference | None:
    """A reference, completed as Docker does. `has_domain`: what stands before the first slash is a registry in any case."""
    first, slash, rest = text.partition("/")
    if has_domain and not slash:
        return None
    named = slash and (has_domain or "." in first or ":" in first or first == "localhost" or first != first.lower())
    domain, remainder = (first, rest) if named else (DEFAULT_REGISTRY, text)
    found = _REFERENCE.fullmatch(remainder)
    if found is None or _IDENTIFIER.fullmatch(text) or not _ANY_DOMAIN.fullmatch(domain):
        return None
    if domain == "index.docker.io":
        domain = DEFAULT_REGISTRY
    path = found["path"]
    if domain == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    if len(domain) + 1 + len(path) > REPOSITORY_LIMIT:
        return None
    return _Reference(domain, path, found["tag"] or "", found["digest"] or "")


def _setting(key: str) -> str:
    return f"polar.toml: images.{key}"
