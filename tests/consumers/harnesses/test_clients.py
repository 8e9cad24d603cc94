"""The settings of each client contain the session's URL and key, and override its user's own."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.harnesses import clients, preset
from consumers.harnesses.clients import write_settings
from consumers.harnesses.preset import Client
from consumers.runtimes.base import ModelAccess
from topics.environment import registry
from topics.types.errors import InputError

MODEL = ModelAccess("http://127.0.0.1:4000", "sk-polar-not-a-real-key", "some/model:free")
PRESETS = ["claude_code", "codex", "gemini_cli", "mini_swe_agent", "opencode", "pi", "qwen_code"]


def variables(text: str) -> dict[str, str]:
    """The variables of a .env file whose values are written like JSON strings."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name: json.loads(value) for name, _, value in lines}


PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": yaml.safe_load,
    ".env": variables,
}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_every_preset_is_a_client() -> None:
    assert set(PRESETS) < set(clients.names())


@pytest.mark.parametrize("name", clients.names())
async def test_a_clients_settings_have_the_url_and_the_key(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "clients" / "t.0"
    written = await write_settings(name, MODEL, folder)
    texts = [*(MODEL.env | written.env).values(), *written.arguments, *(path.read_text() for path in files(folder))]
    assert any(MODEL.proxy_url in text for text in texts)
    assert any(MODEL.key in text for text in texts)
    assert not any("{" in text for text in (*written.arguments, *written.env) if text)


@pytest.mark.parametrize("name", clients.names())
async def test_a_clients_files_parse_and_only_their_owner_can_read_them(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "clients" / "t.0"
    written = await write_settings(name, MODEL, folder)
    for path in files(folder):
        PARSERS[path.suffix or path.name](path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if files(folder):
        assert any(value.startswith(str(folder)) for value in written.env.values()), "a variable leads to the files"


async def test_an_sdk_that_runs_a_preset_has_the_presets_settings(tmp_path: Path) -> None:
    assert await write_settings("claude-agent-sdk", MODEL, tmp_path) == await write_settings(
        "claude_code", MODEL, tmp_path
    )


async def test_the_settings_that_aider_reads_last_are_the_sessions(tmp_path: Path) -> None:
    """Each variable that a file of the person's could set otherwise, and the option of the same name."""
    written = await write_settings("aider", MODEL, tmp_path)
    last = variables(Path(written.env["AIDER_ENV_FILE"]).read_text())
    for prefix in ("", "AIDER_"):
        assert last[f"{prefix}OPENAI_API_BASE"] == f"{MODEL.proxy_url}/v1"
        assert last[f"{prefix}OPENAI_API_KEY"] == MODEL.key
    assert {last[f"AIDER_{kind}MODEL"] for kind in ("", "WEAK_", "EDITOR_")} == {f"openai/{MODEL.model_name}"}


async def test_opencode_has_no_provider_but_ours(tmp_path: Path) -> None:
    written = await write_settings("opencode", MODEL, tmp_path)
    last = json.loads(written.env["OPENCODE_CONFIG_CONTENT"])
    assert last["enabled_providers"] == ["polar"]
    assert last["model"] == last["small_model"] == f"polar/{MODEL.model_name}"
    assert json.loads(written.env["OPENCODE_AUTH_CONTENT"]) == {}, "the person's credentials"


def test_an_unknown_client_names_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"client: no such client; there are: ai-sdk, aider, .*, strands \(got 'emacs'"
    ):
        clients.find("emacs")
    with pytest.raises(InputError, match="no such client"):
        clients.find("shell")  # a harness that no person starts


async def test_a_preset_of_ones_own_is_a_client_if_it_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(
        """
program = "mine"
env = {MINE_URL = "{proxy_url}"}
client = {program = "mine", install = "make mine", env = {MINE_HOME = "{home}", MINE_MODEL = "{model}"}}
"""
    )
    monkeypatch.setenv(registry.PRESETS, str(tmp_path))
    written = await write_settings("mine", MODEL, tmp_path / "home")
    assert written.env == {
        "MINE_URL": MODEL.proxy_url,
        "MINE_HOME": str(tmp_path / "home"),
        "MINE_MODEL": MODEL.model_name,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program = 'a'", "install: Field required"),
        ("install = 'a'\nenv = {A = '{modle}'}", "the client: '{modle}' has no such placeholder; there are: home, key"),
        (
            "install = 'a'\nfiles = [{path = 'a', format = 'toml', content = ['a']}]",
            "files.0: content must be a table, since a TOML file is one",
        ),
        (
            "install = 'a'\nfiles = [{path = 'a', format = 'env', content = {A = 1}}]",
            "files.0: content must be a table of texts, since a file of variables is one",
        ),
    ],
)
def test_what_is_wrong_in_a_clients_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError) as raised:
        preset.read(tmp_path / "mine.toml", Client)
    assert message in str(raised.value)


def test_the_settings_of_a_client_know_nothing_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("program = 'a'\nclient = {install = 'a'}\nenv = {A = '{workspace}'}")
    with pytest.raises(InputError, match=r"'\{workspace\}' has no such placeholder"):
        preset.read(tmp_path / "mine.toml", preset.Preset)
