"""The owner's state of a session: claim, calls and turns, and how they are read back from the log."""
