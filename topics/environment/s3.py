"""A place in an S3-compatible bucket, and how its server is asked.

An address is `s3://BUCKET[/PREFIX]`. Endpoint, region, credentials and authorities come from the variables that AWS's own tools read:
`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (with `AWS_SESSION_TOKEN`), `AWS_SHARED_CREDENTIALS_FILE`
and `AWS_PROFILE`, those of a web identity or a container, `AWS_CA_BUNDLE`; without credentials, the machine's own are requested.
Every request has a deadline, and its repetitions a budget.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from topics.types.errors import NotReadyError, install_command

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential, S3Store

CONNECT_S = 5
REQUEST_S = 30
"""For one request with its body, which has 8 MiB at most."""
RETRY_S = 15
"""After this time a request that failed isn't sent again: time enough for the restart of a server."""
RETRIES = 8
MOST_BETWEEN_S = 4
"""Longest pause between two tries; the first is 0.1 s, and each is twice as long as the one before."""
CREDENTIALS_S = 300
"""How long the content of a credentials file is used before it is read again."""

_ADDRESS = re.compile(r"^s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/+([A-Za-z0-9!_.*'()/-]*))?$")
"""Bucket names: docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; prefixes: its "safe characters" for object keys."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_CAUSE = re.compile(
    r'(?:Connection refused|timed out|operation timed out|dns error|certificate|No such file)[^"\n]*', re.I
)
_OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that come before a credentials file; the library reads them itself."""


@dataclass(frozen=True)
class S3Address:
    """A place in a bucket."""

    bucket: str
    prefix: str
    """Without a slash at either end; may be empty."""

    @classmethod
    def parse(cls, text: str) -> S3Address:
        """Raises ValueError for another form."""
        found = _ADDRESS.match(text)
        if found is None:
            raise ValueError("expected s3://BUCKET or s3://BUCKET/PREFIX, with the bucket's name in lower case")
        return cls(found[1], (found[2] or "").strip("/"))

    def __truediv__(self, name: str) -> S3Address:
        """A place below this one."""
        return S3Address(self.bucket, f"{self.prefix}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def endpoint() -> str | None:
    """URL of the server; None: AWS."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def connect(address: S3Address) -> S3Store:
    """A client for the address; sends nothing yet. Raises NotReadyError without the package, or for AWS_* variables that can't be used."""
    try:
        from obstore.store import S3Store
    except ImportError:
        raise NotReadyError(f"{address} needs the package obstore: {install_command('s3')}") from None
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=REQUEST_S),
        "allow_http": (endpoint() or "").startswith("http://"),
    }
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        try:
            client["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise NotReadyError(f"AWS_CA_BUNDLE can't be read: {error}") from None
    try:
        return S3Store(
            address.bucket,
            prefix=address.prefix or None,
            disable_bulk_delete=True,  # which some servers don't have
            client_options=client,
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_S),
                "backoff": {"max_backoff": timedelta(seconds=MOST_BETWEEN_S)},
            },
            credential_provider=_from_file(),
        )
    except (ValueError, _base_error()) as error:
        raise NotReadyError(f"{address}: the AWS_* variables can't be used: {_first_line(error)}") from None


def failure(error: Exception) -> str:
    """Why a request failed, in a few words: the server's own code, or what befell the connection. Holds no credentials."""
    text = str(error)
    if code := _CODE.search(text):
        remedy = _REMEDIES.get(code[1])
        return f"the server answers {code[1]}" + (f": {remedy}" if remedy else "")
    if type(error).__name__ in _REFUSED:  # HEAD, whose answer has no body
        return "the server refuses these credentials, or they may not read there"
    if cause := _CAUSE.search(text):
        return f"no answer ({cause[0].strip()})"
    return _first_line(error)


def is_refusal(error: Exception) -> bool:
    """Whether a person must change the credentials, their rights or the bucket before such a request can succeed."""
    code = _CODE.search(str(error))
    return type(error).__name__ in _REFUSED or (code is not None and code[1] in _REMEDIES)


_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or correct the setting",
    "AccessDenied": "these credentials may not do this",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY doesn't belong to AWS_ACCESS_KEY_ID",
    "InvalidAccessKeyId": "the server doesn't know this AWS_ACCESS_KEY_ID",
    "ExpiredToken": "renew the credentials",
}


def _base_error() -> type[Exception]:
    from obstore.exceptions import BaseError

    return BaseError


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _from_file() -> Callable[[], S3Credential] | None:
    """Credentials of AWS's shared file, as its tools read it; None if other variables come first, or there is no file."""
    if any(os.environ.get(name) for name in _OWN_CREDENTIALS):
        return None
    named = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    file = Path(named).expanduser() if named else Path.home() / ".aws" / "credentials"
    if named is None and not file.is_file():
        return None
    _read_credentials(file)  # a mistake ends the command now, not at the first request
    return lambda: _read_credentials(file)


def _read_credentials(file: Path) -> S3Credential:
    """The credentials of `AWS_PROFILE`. Raises NotReadyError; no message holds a part of the file."""
    profile = os.environ.get("AWS_PROFILE") or "default"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(f"AWS_SHARED_CREDENTIALS_FILE can't be read: {error}") from None
    except configparser.Error:
        raise NotReadyError(
            f"AWS_SHARED_CREDENTIALS_FILE: {file} isn't in the form of AWS's credentials file"
        ) from None
    section = dict(parser[profile]) if parser.has_section(profile) else {}
    if not (section.get("aws_access_key_id") and section.get("aws_secret_access_key")):
        raise NotReadyError(
            f"AWS_SHARED_CREDENTIALS_FILE: {file} has no aws_access_key_id and aws_secret_access_key under [{profile}] (AWS_PROFILE)"
        )
    return {
        "access_key_id": section["aws_access_key_id"],
        "secret_access_key": section["aws_secret_access_key"],
        "token": section.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S),
    }
