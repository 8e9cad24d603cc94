"""The live view: a fold over records on Kafka, and its reader. It uses no lake and no files."""
