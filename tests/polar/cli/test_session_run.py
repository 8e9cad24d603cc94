"""`polar session open --for` and `polar session run`, with a control API that the test plays and a client that the test puts on PATH.

The client reads the settings that Codex reads, and calls the model with them.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.polar.cli.commands import polar
from tests.polar.control_api import OPENED, Api, answer, played
from tests.waiting import until
from topics.environment.keys import environment

pytestmark = pytest.mark.contract

CLIENT = """\
import json, os, signal, sys, time, tomllib, urllib.request
from pathlib import Path

settings = tomllib.loads((Path(os.environ["CODEX_HOME"]) / "config.toml").read_text())
provider = settings["model_providers"][settings["model_provider"]]
request = urllib.request.Request(
    provider["base_url"] + "/responses",
    json.dumps({"model": settings["model"], "input": sys.stdin.read()}).encode(),
    {"Authorization": "Bearer " + os.environ[provider["env_key"]]},
)
urllib.request.urlopen(request).close()
print(Path.cwd().name, *sys.argv[2:], *(name for name in os.environ if name.startswith("POLAR_")), flush=True)
match sys.argv[1]:
    case "wait":
        time.sleep(60)
    case "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    case code:
        sys.exit(int(code))
"""
WAIT_S = 30.0


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a command: a control API that opens every session, and a client `codex`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    client = tmp_path / "bin" / "codex"
    client.write_text(f"#!{sys.executable}\n{CLIENT}")
    client.chmod(0o755)
    with played(tmp_path) as found:
        assert found.control_url is not None
        answer(201, OPENED | {"env": environment(found.control_url.rstrip("/"), "sk")})
        yield {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "POLAR_DATA": str(tmp_path / "data"),
            "POLAR_CONTROL_URL": found.control_url,
            "POLAR_CONTROL_TOKEN_FILE": str(found.control_token_file),
        }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "polar.cli", "session", "run", *arguments]


def run(env: dict[str, str], tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("codex", "--model", "m", "--", *arguments),
        input="a question",
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path / "work",
        timeout=WAIT_S,
        check=False,
    )


OPEN, MODEL, _, CLOSE = PATHS = ["/v1/sessions", "/v1/models/m", "/v1/responses", "/v1/sessions/t.0/close"]


def test_a_client_has_our_streams_folder_and_arguments_and_we_have_its_exit_code(
    env: dict[str, str], tmp_path: Path
) -> None:
    ended = run(env, tmp_path, "7", "--deep", "a b")
    assert (ended.returncode, ended.stdout) == (7, "work --deep a b\n"), ended.stderr
    assert [path for path, _, _ in Api.asked] == PATHS
    assert Api.asked[2][1:] == ("Bearer sk", {"model": "m", "input": "a question"})
    assert Api.asked[3][2] == {}, "no reward"
    assert "polar: t.0 is open until 2026-11-21T17:50:15Z" in ended.stderr
    folder = tmp_path / "data" / "clients" / "t.0"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_session_is_closed_after_a_crash_of_its_client(env: dict[str, str], tmp_path: Path) -> None:
    assert run(env, tmp_path, "crash").returncode == 128 + signal.SIGKILL
    assert [path for path, _, _ in Api.asked] == PATHS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_client_and_the_session_is_closed(
    number: signal.Signals, env: dict[str, str], tmp_path: Path
) -> None:
    with subprocess.Popen(
        command("codex", "--model", "m", "--", "wait"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
        cwd=tmp_path / "work",
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "work\n"
            process.send_signal(number)
            # Python's own SIGINT is a traceback and the same exit code.
            assert process.wait(WAIT_S) == 128 + number
        finally:
            process.kill()
    assert [path for path, _, _ in Api.asked] == PATHS


def test_a_signal_before_the_client_starts_closes_nothing_that_is_not_open(env: dict[str, str], tmp_path: Path) -> None:
    Path(env["POLAR_CONTROL_TOKEN_FILE"]).unlink()
    os.mkfifo(env["POLAR_CONTROL_TOKEN_FILE"])  # the open waits for a writer
    with subprocess.Popen(
        command("codex", "--", "0"), stderr=subprocess.PIPE, env=env, cwd=tmp_path / "work"
    ) as process:
        try:
            writer: list[int] = []

            def is_read() -> bool:
                try:
                    writer.append(os.open(env["POLAR_CONTROL_TOKEN_FILE"], os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    return False
                return True

            until(is_read, WAIT_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 128 + signal.SIGTERM
            os.close(writer[0])
        finally:
            process.kill()
    assert Api.asked == []


def test_a_client_that_is_not_installed_says_how_and_opens_nothing(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "codex").unlink()
    ended = run(env | {"PATH": str(tmp_path / "bin")}, tmp_path, "0")
    words = "polar: codex isn't on PATH; install it: npm install -g @openai/codex\n"
    assert (ended.returncode, ended.stderr, Api.asked) == (3, words, [])


def test_a_session_that_ended_before_its_client_is_reported(env: dict[str, str], tmp_path: Path) -> None:
    Api.closing = 409, {"error": {"code": "ended", "field": "session_id", "message": "t.0 has ended already"}}
    ended = run(env, tmp_path, "0")
    assert ended.returncode == 0
    assert "polar: t.0 had ended before its client did\n" in ended.stderr


@pytest.fixture
def here(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def test_what_can_not_be_run_opens_nothing(here: None) -> None:
    code, _, stderr = polar("session", "run", "emacs")
    assert code == 2
    assert "client: no such client; there are: ai-sdk, aider" in stderr
    code, _, stderr = polar("session", "run", "langchain")
    assert (code, "is a library: give your program" in stderr) == (2, True)
    code, _, stderr = polar("session", "open", "--for", "emacs")
    assert (code, Api.asked) == (2, [])


def test_what_open_prints_for_a_client_is_for_a_shell(here: None, tmp_path: Path) -> None:
    Api.models = 200, {"id": "m", "max_model_len": 32_768}
    code, stdout, stderr = polar("session", "open", "--for", "pi", "--model", "m")
    assert code == 0
    shown = subprocess.run(["sh", "-c", stdout + "env"], capture_output=True, text=True, check=True, env={}).stdout
    folder = tmp_path / "data" / "clients" / "t.0"
    for line in (f"PI_CODING_AGENT_DIR={folder}/.pi/agent", "OPENAI_API_KEY=sk", "POLAR_SESSION_ID=t.0"):
        assert line in shown.splitlines()
    assert all(line.startswith("export ") for line in stdout.splitlines())
    assert "polar: start pi with these arguments: --provider polar --model m\n" in stderr
    (model,) = json.loads((folder / ".pi/agent/models.json").read_text())["providers"]["polar"]["models"]
    assert (model["id"], model["contextWindow"]) == ("m", 32_768)


def test_for_a_client_without_use_for_it_the_engines_length_is_not_requested(here: None) -> None:
    code, _, stderr = polar("session", "open", "--for", "aider", "--model", "m")
    assert (code, [path for path, _, _ in Api.asked]) == (0, [OPEN]), stderr


def test_what_open_prints_for_a_client_is_for_programs(here: None) -> None:
    _, stdout, _ = polar("session", "open", "--for", "pi", "--format", "json")
    opened = json.loads(stdout)
    assert opened.keys() == {"session_id", "key", "expires_at", "env", "arguments"}
    assert opened["arguments"] == ["--provider", "polar", "--model", "any"]
    assert opened["env"]["PI_OFFLINE"] == "1"


def test_settings_that_can_not_be_written_close_the_session(here: None, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    for arguments in (("open", "--for", "codex", "--model", "m"), ("run", "codex", "--model", "m")):
        Api.asked.clear()
        code, _, stderr = polar("session", *arguments)
        assert (code, "the settings of codex can't be written" in stderr) == (3, True), stderr
        assert [path for path, _, _ in Api.asked] == [OPEN, MODEL, CLOSE]


def test_settings_that_fail_in_a_way_we_do_not_know_close_the_session(here: None) -> None:
    with pytest.raises(AssertionError, match="surrogates"):  # the command's own error
        polar("session", "open", "--for", "codex", "--model", "\udcff")
    assert [path for path, _, _ in Api.asked] == [OPEN, "/v1/models/%3F", CLOSE]
