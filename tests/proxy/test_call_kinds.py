"""Which rule fires on what harnesses send, and that no words of a user's do.

`side_calls/` has requests that real CLIs sent, each with its kind and rule. A text keeps its first words; a digest and its length stand for
the others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from multidict import CIMultiDict

from proxy.call_kinds import BESIDE_WORK, MAIN, RULES, Kind, kind_of
from proxy.chat import ChatRequest, Function, Message, TextPart, Tool
from proxy.dialects.base import Wire, dialects
from proxy.lineage import VALUE_LIMIT, client_of, lineage_of
from topics.environment.redaction import KEY_SHOWN, PREFIX
from topics.types import building
from topics.types.completion import Sampling

TOOL = Tool(Function("bash"))
SCHEMA_TOOL = Tool(Function("respond_in_schema"))
SNAPSHOT = "You are the component that summarizes a conversation when its context window is about to overflow"
SUGGEST = "[SUGGESTION MODE: Suggest what the user might naturally type next"
COMPACT = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed summary of the conversation."


def prompt(system: str, user: str = "mend it", **fields: Any) -> ChatRequest:
    return ChatRequest([Message("system", content=system), Message("user", content=user)], **fields)


def after_an_answer(*parts: str, system: str = "You are Qwen Code, an interactive CLI agent.") -> ChatRequest:
    said = [Message("user", content="mend it"), Message("assistant", content="Mended.")]
    asked = Message("user", content=[TextPart(text) for text in parts])
    return ChatRequest([Message("system", content=system), *said, asked], tools=[TOOL])


CASES: list[tuple[ChatRequest, dict[str, str], Kind]] = [
    (prompt("You are an agent.", tools=[TOOL]), {}, MAIN),
    (prompt("You are an agent."), {"x-session-id": "ses_1"}, MAIN),
    (prompt("x"), {"x-codex-turn-metadata": '{"request_kind":"compaction"}'}, Kind("compaction", "codex_request_kind")),
    (prompt("x"), {"x-codex-turn-metadata": '{"request_kind":"prewarm"}'}, Kind("prewarm", "codex_request_kind")),
    (prompt("x"), {"x-codex-turn-metadata": '{"request_kind":"turn"}'}, MAIN),
    (
        prompt("x"),
        {"x-codex-turn-metadata": '{"request_kind":"turn","thread_source":"thread_title"}'},
        Kind("title", "codex_thread_source"),
    ),
    (prompt("x"), {"x-codex-turn-metadata": '{"request_kind":"turn","thread_source":"user"}'}, MAIN),
    (prompt("x", COMPACT, tools=[TOOL]), {}, Kind("compaction", "claude_code_compact_prompt")),
    (prompt("x", f"<output>\n{COMPACT}", tools=[TOOL]), {}, MAIN),
    (
        prompt("You are a specialized component that distills chat history into a structured <state_snapshot>."),
        {},
        Kind("compaction", "no_tools_summarise_prompt"),
    ),
    (
        prompt(
            "You are a context summarization agent. ".ljust(520)
            + "Only output the structured summary in the exact format"
        ),
        {},
        Kind("compaction", "no_tools_summarise_prompt"),
    ),
    (
        prompt(f"{SNAPSHOT}. The summary you produce"),
        {},
        Kind("compaction", "no_tools_summarise_prompt"),
    ),
    (after_an_answer(f"{SNAPSHOT}."), {}, Kind("compaction", "qwen_code_compact_prompt")),
    (after_an_answer(f"It said: {SNAPSHOT}."), {}, MAIN),
    (after_an_answer(f"{SUGGEST}.]"), {}, Kind("suggestion", "suggestion_mode_prompt")),
    (after_an_answer("A reminder.", f"{SUGGEST}.]"), {}, Kind("suggestion", "suggestion_mode_prompt")),
    (after_an_answer(f"What is {SUGGEST}.]?"), {}, MAIN),
    (after_an_answer(f"<output>\n{SUGGEST}.]"), {}, MAIN),
    (after_an_answer(f"{SUGGEST}.]", system="You are an agent."), {}, MAIN),
    (prompt("You are Qwen Code.", f"{SUGGEST}.]", tools=[TOOL]), {}, MAIN),
    (
        prompt("You are a security classifier for an AI coding agent operating in auto mode.", tools=[SCHEMA_TOOL]),
        {},
        Kind("classifier", "security_classifier_prompt"),
    ),
    (prompt("Write a title for this session.", tools=[SCHEMA_TOOL]), {}, MAIN),
    (prompt("You are a title generator."), {}, Kind("title", "no_tools_title_prompt")),
    (prompt("You are naming a coding session."), {}, Kind("title", "no_tools_title_prompt")),
    (prompt("You are naming a coding session.", tools=[TOOL]), {}, MAIN),
    (
        prompt("You are a security monitor for autonomous AI coding agents."),
        {},
        Kind("classifier", "no_tools_security_prompt"),
    ),
    *(
        (prompt(f"You are {doing}.", tools=tools), {}, Kind("memory", "memory_agent_prompt"))
        for doing in (
            "now acting as the managed memory extraction subagent",
            "performing a managed memory dream",
            "reviewing this conversation to extract reusable skills",
        )
        for tools in ([TOOL], [])
    ),
    (prompt("An agent. You are performing a managed memory dream.", tools=[TOOL]), {}, MAIN),
    (
        prompt("Summarize what was done in this conversation. Write like a pull request description."),
        {},
        Kind("summary", "no_tools_summary_prompt"),
    ),
    (prompt("You are a specialized Task Routing AI."), {}, Kind("router", "no_tools_routing_prompt")),
    (
        prompt("You are an engineer that generates concise, one-line Git commit messages."),
        {},
        Kind("commit_message", "no_tools_commit_prompt"),
    ),
    (
        prompt("x", response_format=msgspec.Raw(b'{"type":"json_schema","json_schema":{"next_speaker":{}}}')),
        {},
        Kind("next_speaker", "schema_for_next_speaker"),
    ),
    (prompt("x", hosted_tools=["web_search_20250305"]), {}, Kind("web_search", "hosted_tools_alone")),
    (prompt("x", hosted_tools=["web_search"], tools=[TOOL]), {}, MAIN),
    (
        ChatRequest([Message("user", content="quota")], sampling=Sampling(max_tokens=1)),
        {},
        Kind("quota", "one_token_of_quota"),
    ),
    (prompt("x", tools=[TOOL]), {"x-claude-code-agent-id": "a1"}, Kind("subagent", "agent_header")),
    (prompt("x", tools=[TOOL]), {"x-openai-subagent": "collab_spawn"}, Kind("subagent", "codex_subagent_header")),
    (prompt("x", tools=[TOOL]), {"x-parent-session-id": "ses_0"}, Kind("subagent", "parent_session_header")),
]


@pytest.mark.parametrize(("request_", "headers", "kind"), CASES)
def test_a_call_is_of_the_first_kind_that_its_evidence_gives(
    request_: ChatRequest, headers: dict[str, str], kind: Kind
) -> None:
    assert kind_of(request_, lineage_of(headers)) == kind


SIDE_CALLS = sorted((Path(__file__).parent / "side_calls").glob("*.json"))


@pytest.mark.parametrize("recorded", SIDE_CALLS, ids=lambda path: path.stem)
def test_a_side_call_that_a_cli_sent_is_of_its_kind(recorded: Path) -> None:
    sent = json.loads(recorded.read_text())
    [dialect] = (dialect for dialect in dialects() if dialect.name == sent["dialect"])
    headers = CIMultiDict(sent["headers"])
    request_ = dialect.parse(Wire(json.dumps(sent["body"]).encode(), headers=headers))
    assert kind_of(request_, lineage_of(headers)) == Kind(sent["kind"], sent["rule"])


SEARCHES: dict[str, tuple[dict[str, str], dict[str, Any], Any, Any]] = {
    "anthropic_messages": (
        {},
        {"messages": [{"role": "user", "content": "x"}]},
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "bash", "input_schema": {}},
    ),
    "openai_responses": ({}, {"input": "x"}, {"type": "web_search"}, {"type": "function", "name": "bash"}),
    "google_generate_content": (
        {"model": "m", "method": "generateContent"},
        {"contents": "x"},
        {"googleSearch": {}},
        {"functionDeclarations": [{"name": "bash"}]},
    ),
}
"""Path, body, the provider's search and a function, of the dialects that take tools which they don't show."""


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_by_the_provider_is_a_side_call_and_beside_functions_main_work(name: str) -> None:
    path, body, search, function = SEARCHES[name]
    [dialect] = (dialect for dialect in dialects() if dialect.name == name)

    def kind(tools: list[Any]) -> Kind:
        return kind_of(dialect.parse(Wire(json.dumps(body | {"tools": tools}).encode(), path)), None)

    assert kind([search]) == Kind("web_search", "hosted_tools_alone")
    assert [kind(tools) for tools in ([search, function], [function, search], [function], [])] == [MAIN] * 4


def test_a_task_may_name_the_kinds_that_rules_give_and_no_other() -> None:
    assert {rule.kind.name for rule in RULES} | {MAIN.name, BESIDE_WORK.name} == set(get_args(building.Kind))


def test_every_rule_has_a_case() -> None:
    assert {rule.kind for rule in RULES} == {kind for *_, kind in CASES} - {MAIN}


@pytest.mark.parametrize("words", [str(case[0].messages[0].content) for case in CASES])
def test_what_a_user_writes_makes_no_side_call(words: str) -> None:
    asked = ChatRequest([Message("system", content="You are an agent."), Message("user", content=[TextPart(words)])])
    assert kind_of(asked, None) == MAIN


def test_lineage_is_told_by_our_names() -> None:
    codex = {
        "session-id": "s",
        "thread-id": "t2",
        "x-codex-window-id": "t2:1",
        "x-openai-subagent": "collab_spawn",
        "x-codex-turn-metadata": '{"request_kind":"turn","thread_source":"x","parent_thread_id":"t1","session_id":"s"}',
        "x-stainless-retry-count": "1",
    }
    assert lineage_of(codex) == {
        "session": "s",
        "thread": "t2",
        "window": "t2:1",
        "subagent": "collab_spawn",
        "request": "turn",
        "source": "x",
        "parent_thread": "t1",
        "retry": "1",
    }
    claude = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a", "x-claude-code-parent-agent-id": "b"}
    assert lineage_of(claude) == {"session": "s", "agent": "a", "parent_agent": "b"}
    assert lineage_of({"x-session-id": "c", "x-parent-session-id": "p"}) == {"session": "c", "parent_session": "p"}


@pytest.mark.parametrize("metadata", ["", "{", "[]", '{"request_kind": 1}', "\udc80"])
def test_headers_that_tell_nothing_are_no_lineage(metadata: str) -> None:
    assert lineage_of({"x-codex-turn-metadata": metadata, "session-id": ""}) is None


def test_a_value_is_cut_to_what_the_log_keeps() -> None:
    assert lineage_of({"session-id": "s" * 1000}) == {"session": "s" * VALUE_LIMIT}


def test_bytes_that_are_no_text_are_question_marks() -> None:
    assert lineage_of({"session_id": "a\udce9"}) == {"session": "a?"}


@pytest.mark.parametrize(
    "told",
    [
        "You are an agent who answers in bash blocks. " * 20 + "The task: mend what makes us {}",
        "You are an agent. The repository has a task routing module; a complexity rubric is beside it.",
        "Solve the task. The service generates git commit messages.",
    ],
)
@pytest.mark.parametrize(
    "words", ["generate a short title", "tasked with summarizing conversations", "a title generator"]
)
def test_what_an_agent_without_tools_is_told_of_its_task_makes_no_side_call(told: str, words: str) -> None:
    assert kind_of(prompt(told.format(words)), None) == MAIN


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({"user-agent": "claude-cli/2.1.329 (external, cli)"}, "claude-cli/2.1.329 (external, cli)"),
        ({"user-agent": "a" * 1000}, "a" * VALUE_LIMIT),
        ({"user-agent": "a\udce9"}, "a?"),
        ({"user-agent": f"mine {PREFIX}abc.def-1"}, f"mine {KEY_SHOWN}"),
        ({"user-agent": ""}, None),
        ({}, None),
    ],
)
def test_a_client_is_named_by_its_user_agent_without_keys(headers: dict[str, str], client: str | None) -> None:
    assert client_of(headers) == client
