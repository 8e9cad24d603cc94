"""The declaration of a topic, and the documents that are rendered from it."""
