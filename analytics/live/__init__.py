"""What goes on now: a fold over what Kafka says, and what follows it. No lake, no files."""
