"""What aiohttp logs of requests that it can't read: that it couldn't, and the error's name.

Its own lines quote the bytes that it stumbled over, a header's among them, and a header holds the key.
"""

from __future__ import annotations

import logging


class _WithoutBytes(logging.Filter):
    """Leaves of an exception its name."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[0] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{record.getMessage()}: {error.__name__}", ()
            record.exc_info = None
        return True


LOGGER = logging.getLogger(__name__)
LOGGER.addFilter(_WithoutBytes())
