"""The event contract: one module a topic, with the records that the topic carries.

`types` holds the nouns, `calls` how a session's calls are written and read as deltas, `contract` what a topic's declaration consists of and
its documents, `log` how records are produced, read and owned on Kafka, `environment` what a process finds where it runs. No other
module of the tree spells a topic's name.
"""
