"""The engine's length in the settings of each preset. The real proxy's answer: tests/proxy/test_proxy.py."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.harnesses.clients import write_settings
from consumers.harnesses.context_window import engines_context, fitted, has_window
from consumers.runtimes.base import ModelAccess
from tests.serving import serving_by_path
from topics.environment import registry
from topics.types.agent import AgentSpec
from topics.types.errors import InputError

MODEL = ModelAccess("http://127.0.0.1:9", "sk-polar-not-a-real-key", "some/model:free")
WINDOWED = ["claude_code", "codex", "opencode", "pi", "qwen_code"]


def claude_code(env: dict[str, str], _: Path) -> tuple[Any, Any]:
    return int(env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]), int(env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"])


def codex(_: dict[str, str], folder: Path) -> tuple[Any, Any]:
    return tomllib.loads((folder / ".codex/config.toml").read_text())["model_context_window"], None


def opencode(_: dict[str, str], folder: Path) -> tuple[Any, Any]:
    providers = json.loads((folder / ".config/opencode/opencode.json").read_text())["provider"]
    limit = providers["polar"]["models"][MODEL.model_name]["limit"]
    return limit["context"], limit["output"]


def pi(_: dict[str, str], folder: Path) -> tuple[Any, Any]:
    (model,) = json.loads((folder / ".pi/agent/models.json").read_text())["providers"]["polar"]["models"]
    return model["contextWindow"], model["maxTokens"]


def qwen_code(_: dict[str, str], folder: Path) -> tuple[Any, Any]:
    told = json.loads((folder / ".qwen/settings.json").read_text())["model"]["generationConfig"]
    return told["contextWindowSize"], told["samplingParams"]["max_tokens"]


@pytest.mark.parametrize(
    ("read", "defaults", "small"),
    [
        (claude_code, (200_000, 32_000), (32_768, 8_192)),
        (codex, (262_144, None), (32_768, None)),
        (opencode, (262_144, 32_000), (32_768, 8_192)),
        (pi, (262_144, 8_192), (32_768, 8_192)),
        (qwen_code, (262_144, 32_000), (32_768, 8_192)),
    ],
)
async def test_each_cli_is_told_the_engines_length_or_else_its_default(
    read: Callable[[dict[str, str], Path], tuple[Any, Any]],
    defaults: tuple[Any, Any],
    small: tuple[Any, Any],
    tmp_path: Path,
) -> None:
    for context, expected in ((None, defaults), (32_768, small), (1_000_000, (1_000_000, defaults[1]))):
        folder = tmp_path / str(context)
        written = await write_settings(read.__name__, replace(MODEL, context=context), folder)
        assert read(written.env, folder) == expected


@pytest.mark.parametrize("name", WINDOWED)
@given(context=st.none() | st.integers(1, 2**21), window=st.none() | st.integers(1, 2**21))
def test_a_tasks_own_window_is_kept_and_warned_of_if_the_engine_has_less(
    name: str, context: int | None, window: int | None
) -> None:
    own = {} if window is None else {"context_window": window}
    agent, warning = fitted(AgentSpec(harness=name, model_name="m", settings=own), context)
    sizes = agent.settings
    if context is None and window is None:
        assert (sizes, warning) == ({}, None)
        return
    assert sizes["context_window"] == (context if window is None else window)
    assert 1 <= sizes.get("max_tokens", 1) <= max(1, sizes["context_window"] // 4)
    if warning is None:
        assert context is None or sizes["context_window"] <= context
    else:
        assert str(window) in warning
        assert str(context) in warning
        assert window is not None
        assert context is not None
        assert window > context


def test_a_tasks_own_limit_of_an_answer_and_its_other_settings_are_kept() -> None:
    given = {"api": "anthropic-messages", "max_tokens": 20_000}
    agent, warning = fitted(AgentSpec(harness="pi", settings=given), 32_768)
    assert (agent.settings, warning) == ({**given, "context_window": 32_768}, None)


@pytest.mark.parametrize("name", ["gemini_cli", "mini_swe_agent"])
def test_a_harness_without_the_setting_stays_as_it_is(name: str) -> None:
    agent = AgentSpec(harness=name)
    assert not has_window(agent)
    assert fitted(agent, 32_768) == (agent, None)


def test_a_bad_setting_is_refused_before_it_is_compared() -> None:
    with pytest.raises(InputError, match=r"agent\.settings\.context_window"):
        fitted(AgentSpec(harness="codex", settings={"context_window": "big"}), 32_768)


def test_a_preset_of_ones_own_has_it_by_the_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("program = 'mine'\n[settings]\ncontext_window = {default = 1000}\n")
    monkeypatch.setenv(registry.PRESETS, str(tmp_path))
    agent = AgentSpec(harness="mine")
    assert has_window(agent)
    assert fitted(agent, 32_768)[0].settings == {"context_window": 32_768}


@pytest.mark.parametrize(
    ("status", "body", "context"),
    [
        (200, {"id": "m", "max_model_len": 32_768}, 32_768),
        (200, {"id": "m", "max_model_len": None}, None),
        (200, {"id": "m"}, None),
        (200, b"<html>", None),
        (404, {"max_model_len": 32_768}, None),
        (503, {}, None),
    ],
)
def test_the_proxy_is_asked_for_the_tasks_model_with_the_sessions_key(
    status: int, body: object, context: int | None
) -> None:
    with serving_by_path(lambda *_: (status, body)) as (url, asked):
        assert engines_context(replace(MODEL, proxy_url=url)) == context
    assert [(path, key) for path, key, _ in asked] == [("/v1/models/some/model%3Afree", f"Bearer {MODEL.key}")]


def test_where_no_proxy_answers_nothing_is_known() -> None:
    assert engines_context(MODEL) is None
