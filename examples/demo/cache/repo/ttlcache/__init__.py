"""A cache that holds a limited number of values, each for a limited time."""

from ttlcache.cache import Cache

__all__ = ["Cache"]
