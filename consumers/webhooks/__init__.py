"""Webhooks: a task's `callback_url` is told of its finished group, signed, tried for a day, at least once."""

GROUP = "webhooks"
"""The role's name, and its consumer group's."""
