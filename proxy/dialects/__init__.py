"""Providers' wire formats, one module each; `polar.registry` finds them by name (kind `dialect`)."""
