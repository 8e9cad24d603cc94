"""The nouns: task, session, completion, trajectory, errors. They know nothing of Kafka or HTTP."""
