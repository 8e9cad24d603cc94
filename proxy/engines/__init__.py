"""Inference servers, one module a way of asking them; `polar.registry` finds them by name (kind `engine`)."""
