"""A session's calls on the log: prompts and messages as deltas, and what later records say about each call."""
