"""How records are produced, read and owned on Kafka."""
