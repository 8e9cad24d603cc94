"""Opened sessions as their users have them: `polar up`, the commands as processes, the official openai client, the page of the docs."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ChatCompletionToolParam

from polar import sessions
from tests.acceptance.up.conftest import SCRIPT
from tests.acceptance.up.console import Step, steps, walk
from tests.acceptance.up.running import STOP_S, Up, engine_record, environment, trajectory
from topics.environment import settings
from topics.types.errors import InputError
from topics.types.session import Status
from topics.types.trajectory import Trajectory, expand

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "sessions.md"
PAGE_S = 200.0
BASH: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}


def trained(found: Trajectory) -> list[int]:
    """All tokens with mask 1, in the order of the traces."""
    traces = [expand(found, trace) for trace in found.traces]
    return [token for trace in traces for token in trace.token_ids[trace.loss_mask == 1].tolist()]


def sampled(up: Up, session_id: str) -> list[int]:
    """By the engine's own record."""
    return [token for call in engine_record(up) if call["session_id"] == session_id for token in call["token_ids"]]


def work(env: dict[str, str], *, stream: bool) -> None:
    """Two turns with a tool call between them, by the official client."""
    said: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Please list the files."}]
    with OpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0) as client:
        first = asked(client, said, stream=stream)
        assert first.tool_calls is not None
        (call,) = first.tool_calls
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("bash", '{"command":"ls"}')
        said.append(
            {
                "role": "assistant",
                "content": first.content,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                ],
            }
        )
        said.append({"role": "tool", "tool_call_id": call.id, "content": "a.py"})
        assert asked(client, said, stream=stream).content == "There is one file, a.py."


def asked(client: OpenAI, said: list[ChatCompletionMessageParam], *, stream: bool) -> ChatCompletionMessage:
    if not stream:
        return client.chat.completions.create(model="any", messages=said, tools=[BASH]).choices[0].message
    with client.chat.completions.stream(model="any", messages=said, tools=[BASH]) as events:
        return events.get_final_completion().choices[0].message


def test_commands_give_a_session_whose_calls_are_exactly_its_trajectory(up: Up) -> None:
    opened = up.polar("session", "open", "--run", "by-hand", "--label", "try 2", "--format", "json")
    assert opened.returncode == 0, opened.stderr
    told = json.loads(opened.stdout)
    assert told.keys() == {"session_id", "key", "expires_at", "env"}
    session_id = told["session_id"]
    work(told["env"], stream=False)
    done = up.polar("session", "close", session_id, "--reward", "-0.5")
    assert done.returncode == 0, done.stderr
    with pytest.raises(openai.ConflictError, match="this session is over"):
        work(told["env"], stream=False)
    tokens = sampled(up, session_id)
    words = f"{session_id} COMPLETED, reward -0.5: 2 calls, {len(tokens)} trainable tokens (polar show {session_id})\n"
    assert done.stdout == words
    found = trajectory(up, session_id)
    assert (found.status, found.reward, found.error, found.harness) == (Status.COMPLETED, -0.5, None, "external")
    assert (len(found.traces), trained(found)) == (1, tokens)
    assert (found.label, {call.client for call in found.calls}) == ("try 2", {f"OpenAI/Python {openai.__version__}"})
    shown = up.polar("show", session_id).stdout
    assert f"label try 2, attempt 1\n  client OpenAI/Python {openai.__version__}\n" in shown
    assert up.polar("status", session_id).stdout.splitlines()[0].split()[:2] == ["session", "label"]
    of_run = up.polar("trajectories", "--run", "by-hand", "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["session_id"] for line in of_run] == [session_id]
    again = up.polar("session", "close", session_id, "--reward", "1")
    assert (again.returncode, again.stdout) == (1, words)
    assert "had ended already: the reward 1 came too late" in again.stderr
    assert told["key"] not in "".join(log.read_text() for log in (up.data / "logs").iterdir())


def test_a_with_block_is_a_session_and_streams_are_captured_alike(up: Up) -> None:
    async def agent() -> sessions.Session:
        """Where a loop runs, as in a notebook."""
        with sessions.Session.open(up.data, ttl_s=60) as session:
            work(session.env, stream=True)
            session.reward = 1.0
        return session

    session = asyncio.run(agent())
    assert session.ended is not None
    assert (session.ended.status, session.ended.reward, session.ended.calls) == (Status.COMPLETED, 1.0, 2)
    assert trained(trajectory(up, session.session_id)) == sampled(up, session.session_id)


def test_a_block_that_raises_closes_its_session_and_says_what_it_raised(up: Up) -> None:
    with pytest.raises(ZeroDivisionError), sessions.Session.open(up.data) as session:
        _ = 1 / 0
    row = asyncio.run(sessions.until_ended(session.settings, session.session_id))
    assert row is not None
    assert (row.status, row.reward, row.calls) == (Status.COMPLETED, None, 0)


def test_a_session_left_alone_ends_at_its_ttl_with_its_calls(up: Up) -> None:
    session = sessions.Session.open(up.data, ttl_s=5)
    work(session.env, stream=False)
    row = asyncio.run(sessions.until_ended(session.settings, session.session_id))
    assert row is not None
    assert row.error is not None
    assert (row.status, row.reward, row.error.code, row.calls) == (Status.TIMED_OUT, None, "timeout", 2)
    assert trained(trajectory(up, session.session_id)) == sampled(up, session.session_id)
    with pytest.raises(sessions.SessionRefusedError, match="has ended already"):
        session.close()


def test_what_can_not_be_says_field_and_reason(up: Up) -> None:
    found = settings.load(up.data)
    with pytest.raises(InputError, match=r"session_id: there is no session nosuch\.0"):
        sessions.close_session(found, "nosuch.0")
    with pytest.raises(InputError, match="reward: a reward is a finite number"):
        sessions.close_session(found, "nosuch.0", float("nan"))
    with pytest.raises(InputError, match=r"task_id: .* \(got 'a b'\)"):
        sessions.Session.open(up.data, task_id="a b")
    with pytest.raises(InputError, match="ttl_s: Input should be less than or equal to 86400"):
        sessions.Session.open(up.data, ttl_s=90_000)
    refused = up.polar("session", "close", "nosuch.0")
    assert (refused.returncode, refused.stdout, refused.stderr) == (
        2,
        "",
        "polar: session_id: there is no session nosuch.0\n",
    )


@pytest.mark.hard
@pytest.mark.timeout(400)
def test_a_session_outlives_an_up_that_is_killed_and_started_again_on_its_port(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = ("--scripts", str(tmp_path / "list.yaml"), "--port", str(port))
    killed = Up(tmp_path, *options)
    opened = json.loads(killed.polar("session", "open", "--format", "json").stdout)
    work(opened["env"], stream=False)
    killed.process.kill()
    killed.process.wait()
    killed.ready_file.unlink()
    again = Up(tmp_path, *options)
    try:
        work(opened["env"], stream=False)
        done = again.polar("session", "close", opened["session_id"], "--reward", "1")
        assert done.stdout.startswith(f"{opened['session_id']} COMPLETED, reward 1: 4 calls, "), done.stderr
    finally:
        again.process.terminate()
        assert again.process.wait(STOP_S) == 0


@pytest.mark.hard
def test_the_page_of_the_docs_is_so(up: Up) -> None:
    """Its program as the last of its commands."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    by_program = Step("the program", f"python - <<'END'\n{program}END", ["COMPLETED 0.0 1"])
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    settings = environment() | {"PATH": path, "POLAR_DATA": str(up.data)}
    differences = walk([*steps(PAGE, ROOT), by_program], folder=ROOT, environment=settings, deadline_s=PAGE_S)
    assert not differences, "\n\n".join(differences)
