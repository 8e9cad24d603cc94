"""What a topic declares, and the documents that are rendered from its declaration."""
