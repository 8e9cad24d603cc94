"""What the owner of a session holds of it: its claim, calls and turns; and how that is read back from the log."""
