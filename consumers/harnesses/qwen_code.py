"""The harness `qwen_code`: the real CLI `@qwen-code/qwen-code`, as `qwen_code.toml` describes it."""

from __future__ import annotations

from consumers.harnesses.data_harness import own_harness

QwenCode = own_harness(__name__)
