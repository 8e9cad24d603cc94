"""Inference servers, one module a way of asking them; `topics.environment.registry` finds them by name (kind `engine`)."""
