"""What happened and what goes on: `writing` fills the `lake`, `asking` is SQL over it, `live` watches. It writes nothing to Kafka."""
