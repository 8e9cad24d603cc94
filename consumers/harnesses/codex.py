"""The harness `codex`: the real CLI `@openai/codex`, as `codex.toml` describes it."""

from __future__ import annotations

from consumers.harnesses.data_harness import own_harness

Codex = own_harness(__name__)
