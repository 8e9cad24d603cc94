"""SQL over the lake: the views, and a read-only connection."""
