"""The harness `pi`: the real CLI `@earendil-works/pi-coding-agent`, as `pi.toml` describes it."""

from __future__ import annotations

from consumers.harnesses.data_harness import own_harness

Pi = own_harness(__name__)
