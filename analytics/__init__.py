"""The lake: what the log said, as Parquet files that DuckDB reads, and the views over them. Reads Kafka, writes nothing to it."""
