"""Finished sessions as OpenTelemetry traces, sent to a tracing backend over OTLP/HTTP (docs/tracing.md)."""
