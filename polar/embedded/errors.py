"""The embedded broker's errors: whatever went wrong, its caller can only say so and stop."""


class BrokerError(RuntimeError):
    """The broker cannot be installed or started; the message says why, shows its log's end, and names the way out."""


class AddressTaken(BrokerError):  # noqa: N818 - named for what happened
    """Another program has taken one of its ports since they were looked at."""
