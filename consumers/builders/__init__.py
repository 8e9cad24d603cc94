"""Builders: a session's calls in, its trajectory out. Pure, so that all of it can be built again from the log."""
