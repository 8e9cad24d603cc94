"""Analytics: `writing` fills the `lake` from Kafka, `queries` is SQL over it, `live` follows the topics. Nothing is written to Kafka."""
