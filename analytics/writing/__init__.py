"""The consumer that writes the lake from the log. Exactly once: rows and offsets are committed in one manifest."""
