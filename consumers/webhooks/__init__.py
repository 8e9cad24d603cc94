"""Webhooks: the finished groups of a task are posted to its `callback_url`, signed, at least once, with retries for a day."""

GROUP = "webhooks"
"""The name of the role and of its consumer group."""
