"""What the cache keeps under a key."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A value, and until when it may be given out."""

    value: object
    expires_at: float

    def is_expired(self, now: float) -> bool:
        """Whether its time is over; at `expires_at` it is."""
        return now > self.expires_at
