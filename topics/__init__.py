"""The event contract: one module a topic, with the messages that it carries, and how they are produced and read.

Nothing else in the tree spells a topic's name.
"""
