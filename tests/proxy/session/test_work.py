"""Which calls are beside a claim's work: those without tools, under another system prompt, that continue none of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.call_kinds import BESIDE_WORK, MAIN, Kind
from proxy.capture import CallSpec, answered_record
from proxy.chat import Answer, ChatRequest, Function, Message, Tool, Usage
from proxy.session.claim_state import ClaimState
from proxy.session.logged_calls import LoggedCall
from proxy.session.recovery import ClaimLog
from topics.environment.keys import KeyClaims
from topics.types.completion import Completion
from topics.types.tokens import pack_ids, pack_logprobs

TOOLS = [Tool(Function("bash"))]
THREAD = {"thread": "t"}
WORK = ("main", "subagent")


@dataclass
class Session:
    """The calls of one claim. Each answer is another text."""

    claim: ClaimState = field(
        default_factory=lambda: ClaimState(KeyClaims("t.0", 1, "c", expires_at=2**31, issued_at=0, namespace="polar"))
    )
    log: list[Completion] = field(default_factory=list)

    def judged(self, messages: Sequence[Message], tools: Sequence[Tool], lineage: Mapping[str, str] | None) -> Kind:
        """As the proxy judges a request that no rule knows, which it then forgets."""
        restored, transcript = self.claim.restore(ChatRequest(list(messages), tools=list(tools)), None)
        return BESIDE_WORK if self.claim.is_beside_work(restored, transcript, lineage) else MAIN

    def call(
        self,
        system: str | None,
        *history: Message | str,
        tools: Sequence[Tool] = (),
        lineage: Mapping[str, str] | None = None,
        kind: Kind | None = None,
    ) -> tuple[str, list[Message]]:
        """The kind of an answered call, `kind` if a rule knows it, and its conversation with the answer. Texts are the user's."""
        messages = [] if system is None else [Message("system", system)]
        messages += [Message("user", each) if isinstance(each, str) else each for each in history]
        kind = kind or self.judged(messages, tools, lineage)
        request, transcript = self.claim.restore(ChatRequest(messages, tools=list(tools)), None)
        answer = Answer(
            Message("assistant", f"answer {len(self.log)}"),
            "stop",
            Usage(1, 1),
            pack_ids([1]),
            pack_ids([2]),
            pack_logprobs([0.0]),
            "m",
        )
        call_id = f"c{len(self.log)}"
        told = None if lineage is None else dict(lineage)
        spec = CallSpec(call_id, self.claim, "openai_chat", "e", request, transcript, 0.0, lineage=told, kind=kind)
        record = answered_record(spec, answer)
        self.log.append(record)
        self.claim.add(LoggedCall(record, request.messages, transcript, answer.message), answer.prompt_ids)
        return record.kind, [*messages[system is not None :], answer.message]


def at_work() -> tuple[Session, list[Message]]:
    """A session whose agent has tools, and the agent's conversation."""
    session = Session()
    kind, conversation = session.call("You are an agent.", "mend it", tools=TOOLS)
    assert kind == "main"
    return session, conversation


def test_another_system_prompt_without_tools_beside_work_with_tools_is_a_side_call() -> None:
    session, conversation = at_work()
    assert session.call("Name this.", "mend it")[0] == "side"
    assert session.call("You are an agent.", *conversation, "on", tools=TOOLS)[0] == "main"
    assert session.call("Is this safe?", "rm -rf /")[0] == "side"


@pytest.mark.parametrize("system", ["You are an agent.", None])
def test_without_a_system_prompt_of_its_own_a_call_is_work(system: str | None) -> None:
    session, _ = at_work()
    assert session.call(system, "say it again")[0] == "main"


def test_with_tools_a_call_is_work_whatever_its_system_prompt_is() -> None:
    session, _ = at_work()
    assert session.call("You are another agent.", "mend it", tools=TOOLS)[0] == "main"
    assert session.call("You are another agent.", "sum up")[0] == "main", "its prompt is work's from now on"


def test_agents_without_tools_are_work_however_many_prompts_they_have() -> None:
    session = Session()
    for system in ("You plan.", "You write.", "You review.", "You plan."):
        kind, conversation = session.call(system, "mend it")
        assert kind == "main"
        assert session.call(system, *conversation, "on")[0] == "main"
        assert session.call(system, "a summary of what was before")[0] == "main", "after a compaction"


def test_a_prompt_that_worked_before_there_were_tools_stays_work() -> None:
    session = Session()
    session.call("You plan.", "mend it")
    session.call("You are an agent.", "do as planned", tools=TOOLS)
    assert session.call("You plan.", "what next?")[0] == "main"


def test_an_agent_without_tools_that_a_conversation_was_handed_to_is_work() -> None:
    session, conversation = at_work()
    kind, handed = session.call("You write the report.", *conversation, "report")
    assert kind == "main"
    assert session.call("You write the report.", *handed, "shorter")[0] == "main"


@pytest.mark.parametrize("known", [None, Kind("title", "rule")])
def test_what_goes_on_from_a_side_call_is_a_side_call(known: Kind | None) -> None:
    session, _ = at_work()
    _, titling = session.call("Name this.", "mend it", kind=known)
    assert session.call("Name this.", *titling, "That is no JSON.")[0] == "side"


def test_each_thread_has_work_of_its_own() -> None:
    session = Session()
    session.call("You are an agent.", "mend it", tools=TOOLS, lineage={"thread": "a"})
    assert session.call("You write.", "a poem", lineage={"thread": "b"})[0] == "main"
    assert session.call("You write.", "a poem")[0] == "main"
    assert session.call("Name this.", "mend it", lineage={"thread": "a", "retry": "1"})[0] == "side"


def test_what_a_rule_knows_as_no_work_brings_no_prompt_and_no_tools() -> None:
    session = Session()
    session.call("You keep memories.", "look", tools=TOOLS, kind=Kind("memory", "rule"))
    assert session.call("You write.", "a poem")[0] == "main"
    session.call("You are an agent.", "mend it", tools=TOOLS)
    session.call("Name this.", "mend it", kind=Kind("title", "rule"))
    assert session.call("Name this.", "mend it")[0] == "side"


ASKED = st.tuples(
    st.sampled_from([None, "You are an agent.", "You write.", "Name this."]),
    st.booleans(),
    st.sampled_from([None, THREAD]),
    st.integers(0, 4),
    st.sampled_from([None, None, None, Kind("title", "rule"), Kind("subagent", "rule")]),
)
"""System prompt, whether with tools, thread, the conversation that it goes on with, and a rule's kind."""


@settings(deadline=None, max_examples=100)
@given(st.lists(ASKED, min_size=1, max_size=8))
def test_a_side_call_is_what_it_is_said_to_be_and_the_next_owner_judges_alike(
    asked: list[tuple[str | None, bool, dict[str, str] | None, int, Kind | None]],
) -> None:
    session = Session()
    said: list[tuple[str, list[Message]]] = []
    work: list[tuple[str | None, bool, dict[str, str] | None]] = []
    for system, has_tools, lineage, after, known in asked:
        on = said[after] if after < len(said) else ("", [])
        messages = [Message("system", system)] * (system is not None) + [*on[1], Message("user", "go")]
        tools = TOOLS if has_tools else []
        mine = [each for each in work if each[2] == lineage]
        is_side = (
            not has_tools
            and system is not None
            and any(with_tools for _, with_tools, _ in mine)
            and system not in [prompt for prompt, *_ in mine]
            and _of_side_calls(messages, said)
        )
        assert session.judged(messages, tools, lineage) == (BESIDE_WORK if is_side else MAIN)
        next_owner = Session()
        next_owner.claim.take_over(ClaimLog(session.log, frozenset(), 0, is_over=False))
        assert next_owner.judged(messages, tools, lineage) == session.judged(messages, tools, lineage)
        kind, conversation = session.call(system, *on[1], "go", tools=tools, lineage=lineage, kind=known)
        said.append((kind, conversation))
        if kind in WORK:
            work.append((system, has_tools, lineage))


def _of_side_calls(messages: list[Message], said: list[tuple[str, list[Message]]]) -> bool:
    """Whether no answer among the messages is work's."""
    kinds = {conversation[-1].content: kind for kind, conversation in said}
    return all(kinds[message.content] not in WORK for message in messages if message.role == "assistant")
