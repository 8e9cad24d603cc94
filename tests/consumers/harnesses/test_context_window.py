"""The engine's length in the settings of each preset. The real proxy's answer: tests/proxy/test_proxy.py."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.harnesses import context_window
from consumers.harnesses.base import Tokens, harness_of
from consumers.harnesses.clients import uses_context, write_settings
from consumers.harnesses.context_window import engines_context, engines_context_in_time, fitted, has_window
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
    generation = json.loads((folder / ".qwen/settings.json").read_text())["model"]["generationConfig"]
    return generation["contextWindowSize"], generation["samplingParams"]["max_tokens"]


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
async def test_each_cli_has_the_engines_length_or_else_its_default(
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
    own = {"api": "anthropic-messages", "max_tokens": 20_000}
    agent, warning = fitted(AgentSpec(harness="pi", settings=own), 32_768)
    assert (agent.settings, warning) == ({**own, "context_window": 32_768}, None)


@pytest.mark.parametrize(("max_tokens", "is_warned"), [(4095, False), (4096, True), (5000, True)])
def test_a_tasks_own_limit_of_an_answer_that_leaves_no_room_is_warned_of(max_tokens: int, is_warned: bool) -> None:
    agent, warning = fitted(AgentSpec(harness="pi", model_name="m", settings={"max_tokens": max_tokens}), 4096)
    assert agent.settings == {"context_window": 4096, "max_tokens": max_tokens}
    if not is_warned:
        assert warning is None
        return
    assert warning is not None
    assert warning.startswith("the engine of model 'm' takes 4096 tokens")
    assert f"agent.settings.max_tokens is {max_tokens}, " in warning
    assert "context_window" not in warning


def test_one_message_names_both_sizes_that_are_too_large() -> None:
    _, warning = fitted(AgentSpec(harness="pi", settings={"context_window": 8192, "max_tokens": 5000}), 4096)
    assert warning is not None
    for words in ("takes 4096 tokens", "context_window is 8192", "max_tokens is 5000"):
        assert words in warning


@pytest.mark.parametrize("name", ["gemini_cli", "mini_swe_agent"])
def test_a_harness_without_the_setting_stays_as_it_is(name: str) -> None:
    agent = AgentSpec(harness=name)
    assert not has_window(agent)
    assert fitted(agent, 32_768) == (agent, None)


def test_a_bad_setting_is_left_to_the_harness_which_refuses_it() -> None:
    agent = AgentSpec(harness="codex", settings={"context_window": "big"})
    assert fitted(agent, 32_768) == (agent, None)
    with pytest.raises(InputError, match=r"agent\.settings\.context_window"):
        harness_of(agent)


class Optional(msgspec.Struct):
    context_window: Tokens = 200_000
    max_tokens: int | None = None


class Made(msgspec.Struct):
    context_window: int = msgspec.field(default_factory=lambda: 1000)
    max_tokens: int = msgspec.field(default_factory=lambda: 100)


class Bounded(msgspec.Struct):
    context_window: Annotated[int, msgspec.Meta(le=131_072)] = 131_072


class LongAnswers(msgspec.Struct):
    context_window: int = 200_000
    max_tokens: Annotated[int, msgspec.Meta(ge=100_000)] = 100_000


class Words(msgspec.Struct):
    context_window: Literal["small", "large"] = "small"


class Flag(msgspec.Struct):
    context_window: bool = True


class TwoKinds(msgspec.Struct):
    context_window: int | str = 200_000


class Dependent(msgspec.Struct):
    context_window: int = 200_000
    max_tokens: int = 100_000

    def __post_init__(self) -> None:
        if self.context_window < self.max_tokens * 2:
            raise InputError("agent.settings.max_tokens", self.max_tokens, "must be at most half of context_window")


@pytest.mark.parametrize(
    ("settings_type", "own", "fit"),
    [
        (Optional, {}, {"context_window": 262_144}),
        (Optional, {"max_tokens": None}, {"context_window": 262_144, "max_tokens": None}),
        (Optional, {"context_window": 1000}, {"context_window": 1000}),
        (Made, {}, {}),
        (Made, {"context_window": 500}, {"context_window": 500}),
        (Bounded, {}, {}),
        (LongAnswers, {}, {}),
        (Words, {}, {}),
        (Words, {"context_window": "large"}, {"context_window": "large"}),
        (Flag, {}, {}),
        (TwoKinds, {"context_window": "auto"}, {"context_window": "auto"}),
        (Dependent, {"max_tokens": 1}, {"context_window": 262_144, "max_tokens": 1}),
        (Dependent, {"context_window": 1}, {"context_window": 1}),
        (Dependent, {"max_tokens": 200_000}, {"max_tokens": 200_000}),
    ],
)
def test_settings_of_these_names_that_mean_something_else_stay_as_they_are(
    settings_type: type[msgspec.Struct], own: dict[str, Any], fit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own:
        """A user's harness."""

    Own.settings_type = settings_type  # type: ignore[attr-defined] # the registry's plug-ins have it
    monkeypatch.setattr(registry, "load", lambda *_: Own)
    assert fitted(AgentSpec(harness="own", settings=own), 262_144) == (AgentSpec(harness="own", settings=fit), None)


def test_a_choice_of_this_name_in_a_preset_of_ones_own_is_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = "{default = 'small', choices = {small = {}, large = {}}}"
    (tmp_path / "mine.toml").write_text(f"program = 'mine'\n[settings]\ncontext_window = {choice}\n")
    monkeypatch.setenv(registry.PRESETS, str(tmp_path))
    agent = AgentSpec(harness="mine")
    assert not has_window(agent)
    assert fitted(agent, 32_768) == (agent, None)


@pytest.mark.parametrize(
    ("client", "uses"), [("codex", True), ("claude-agent-sdk", True), ("gemini_cli", False), ("aider", False)]
)
def test_only_clients_with_the_setting_use_the_engines_length(client: str, uses: bool) -> None:
    assert uses_context(client) == uses


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


async def test_an_answer_that_trickles_in_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes well within the time for one."""
    monkeypatch.setattr(context_window, "TIMEOUT_S", 0.3)
    is_over, is_closed = asyncio.Event(), asyncio.Event()

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not is_over.is_set():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        is_closed.set()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(30):
            assert await engines_context_in_time(replace(MODEL, proxy_url=url)) is None
        is_over.set()
        await is_closed.wait()
