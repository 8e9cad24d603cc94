"""Providers' wire formats, one module each; `topics.environment.registry` finds them by name (kind `dialect`)."""
