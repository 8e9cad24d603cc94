"""The harness `gemini_cli`: the real CLI `@google/gemini-cli`, as `gemini_cli.toml` describes it."""

from __future__ import annotations

from consumers.harnesses.data_harness import own_harness

GeminiCli = own_harness(__name__)
