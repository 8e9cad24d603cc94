"""The event contract: one module per topic, with the topic's records. No other module of the tree spells a topic's name.

`types` holds the nouns, `calls` a session's calls on the log, `contract` topic declarations and their documents, `log` how records are
produced, read and owned on Kafka, `waiting` races and backoff, `environment` settings, keys, files and plug-ins of a process.
"""
