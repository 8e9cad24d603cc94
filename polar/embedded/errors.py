"""The embedded broker's errors. The caller can only report them and stop."""


class BrokerError(RuntimeError):
    """The broker cannot be installed or started; the message holds the reason, the end of its log, and what to do."""


class AddressTakenError(BrokerError):
    """Another program took one of the broker's ports after the broker had found it free."""
