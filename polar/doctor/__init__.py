"""Checks of this machine, of a running system and of an engine. Each is a function with a deadline, and changes nothing."""
