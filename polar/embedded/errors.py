"""The embedded broker's one error: whatever went wrong, its caller can only say so and stop."""


class BrokerError(RuntimeError):
    """The broker cannot be installed or started; the message says why, shows its log's end, and names the way out."""
