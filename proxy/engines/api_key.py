"""The API key that an engine's servers demand, in a file that may change while calls are made."""

from __future__ import annotations

import re
from pathlib import Path

import structlog

from topics.types.errors import InputError

LONGEST = 4096
"""Characters; providers' keys have fewer than 300."""
_KEY = re.compile(rf"[!-~]{{1,{LONGEST}}}")
"""Characters that a header may carry, without spaces."""

log = structlog.get_logger(__name__)


class ApiKey:
    """A key in a file. A file that changes is read again; one that becomes unreadable leaves the last key in use."""

    def __init__(self, file: Path, *, field: str) -> None:
        """Raises InputError, naming `field`, for a file without a key."""
        self.file = file
        self._field = field
        self._read_at = self._changed_at()
        self._key = self._read()

    def __repr__(self) -> str:
        return f"ApiKey({str(self.file)!r})"

    @property
    def value(self) -> str:
        """The key now."""
        try:
            changed_at = self._changed_at()
            if changed_at != self._read_at:
                self._read_at = changed_at
                self._key = self._read()
        except InputError as error:
            log.warning("an engine's API key stays the old one", action="api_key_unreadable", why=str(error))
        return self._key

    def _changed_at(self) -> int:
        """The file's time of change in ns; 0 if there is no file."""
        try:
            return self.file.stat().st_mtime_ns
        except OSError:
            return 0

    def _read(self) -> str:
        try:
            key = self.file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(self._field, str(self.file), f"can't be read: {error}") from None
        if not _KEY.fullmatch(key):
            raise InputError(self._field, str(self.file), "must hold one API key: printable ASCII without spaces")
        return key
