"""The messages as the model read them, each once. A conversation is printed to its end before its branches.

An answer is printed where it was sampled. An assistant message that no call of this session sampled there is the harness's own wording,
and is marked. Text of harnesses and tools is shortened; text of the model only if it is very long.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from polar.cli.show.page import INDENT, LINE, Page, duration
from polar.show.story import MAIN, CallStory, Story, calls_of
from polar.show.texts import texts_of
from topics.types.trajectory import ROOT

READ_LINES = 12
SAMPLED_LINES = 60
ROLE_STYLES = {"system": "magenta", "developer": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


def draw_transcript(page: Page, story: Story) -> None:
    """The conversations of the main calls, or of all calls if there is no main call."""
    page.heading("Transcript")
    main = [call for call in story.calls if call.call.kind == MAIN] or story.calls
    shown = {index for call in main for index in story.path(call.asked if call.said is None else call.said)}
    if not shown:
        page.line("no messages", indent=2)
    drawer = _Drawer(page, story)
    before: int | None = None
    for index in _in_order(story, shown):
        parent = story.messages[index].parent
        if before is not None and parent != before:
            drawer.branch(index)
        drawer.message(index)
        before = index
    for call in main:
        if call.asked == ROOT and not call.is_answered:
            drawer.unanswered(call)
    drawn = {call.number for call in main}
    aside = [call for call in story.calls if call.number not in drawn]
    if aside:
        named = ", ".join(f"{call.number} ({call.call.kind})" for call in aside)
        page.line((f"side calls aren't shown here: {named}; --call N shows one", "dim"))


def draw_call(page: Page, story: Story, told: CallStory) -> None:
    call, record = told.call, told.record
    page.line((f"call {told.number}", "bold"), f"  {call.call_id}  {call.outcome}")
    facts = {
        "session": story.session.session_id,
        "kind": f"{call.kind} (rule {record.kind_rule})" if record and record.kind_rule else call.kind,
        "dialect": call.dialect,
        "engine": call.engine or (record.engine if record else None),
        "model": call.model_served,
        "asked for": record.model_requested if record else None,
        "policy version": call.policy_version,
        "publication": call.publication,
        "parent": call.parent,
        "branch": call.branch,
        "not trained": told.masked,
        "disowned": told.disowned,
        "reward": call.reward,
        "took": duration(call.completed_at - call.received_at),
        "tokens": f"{call.prompt_tokens:,} read, {call.sampled_tokens:,} sampled",
        "finish": call.finish_reason,
        "tools": ", ".join(told.tools) or None,
        "lineage": ", ".join(f"{k} {v}" for k, v in record.lineage.items()) if record and record.lineage else None,
        "sampling": json.dumps(settings_of(told)),
        "logprobs": f"{call.logprobs_mode}{', plain sampling' * call.sampling.plain}" if told.is_answered else None,
        "gap": told.gap,
    }
    for name, value in facts.items():
        if value is not None:
            page.line(f"{name}: {value}", indent=2)
    drawer = _Drawer(page, story)
    for index in story.path(told.asked):
        drawer.message(index, is_alone=True)
    if told.said is not None:
        drawer.message(told.said, is_alone=True)
    if not told.is_answered:
        drawer.unanswered(told)


def settings_of(told: CallStory) -> dict[str, Any]:
    """The call's sampling settings, without those left to the engine."""
    found = msgspec.structs.asdict(told.call.sampling)
    return {name: value for name, value in found.items() if value or (value == 0 and value is not False)}


def _in_order(story: Story, shown: set[int]) -> Iterator[int]:
    """Depth first, older branches first. Not by recursion: a conversation may be thousands of messages deep."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for index in sorted(shown):
        children[story.messages[index].parent].append(index)
    todo = children[ROOT][::-1]
    while todo:
        index = todo.pop()
        yield index
        todo += children[index][::-1]


class _Drawer:
    """Prints messages, with facts about the calls that sampled them."""

    def __init__(self, page: Page, story: Story) -> None:
        self._page = page
        self._story = story
        self._said: defaultdict[int, list[CallStory]] = defaultdict(list)
        self._failed: defaultdict[int, list[CallStory]] = defaultdict(list)
        for call in story.calls:
            if call.said is not None:
                self._said[call.said].append(call)
            if not call.is_answered and call.asked != ROOT:
                self._failed[call.asked].append(call)
        self._started_at = min((call.call.received_at for call in story.calls), default=0)
        self._tools = {called["id"]: called["function"]["name"] for one in story.messages for called in calls_of(one)}

    def branch(self, index: int) -> None:
        """A line that says where the next message branches off."""
        message = self._story.messages[index]
        call = self._story.calls[message.brought_by]
        why = f" ({call.call.branch})" if call.call.branch else ""
        whence = "from the beginning" if message.parent == ROOT else f"from message {message.parent + 1}"
        self._page.line()
        self._page.line((f"── call {call.number} branches {whence}{why} ──", "bold cyan"))

    def message(self, index: int, *, is_alone: bool = False) -> None:
        """A message and, unless `is_alone`, the failed calls after it."""
        message = self._story.messages[index]
        body, said = message.body, self._said[index]
        role = str(body.get("role"))
        lines = SAMPLED_LINES if role == "assistant" else READ_LINES
        self._page.line()
        self._page.line((f"{index + 1} ", "dim"), (role, ROLE_STYLES.get(role, "")), self._who(body, said))
        if body.get("reasoning"):
            self._page.line(("reasoning:", "dim italic"), indent=INDENT)
            self._page.shortened(str(body["reasoning"]), lines, indent=2 * INDENT, style="dim italic")
        for text in texts_of(body.get("content")):
            self._page.shortened(text.removesuffix("\n"), lines)
        for called in calls_of(message):
            self._called(called["function"]["name"], called["function"]["arguments"], lines)
        for call in () if is_alone else self._failed[index]:
            self.unanswered(call)

    def unanswered(self, call: CallStory) -> None:
        error = call.record.error if call.record else None
        why = f": {error.code}" if error else ""
        status = f" (HTTP {error.status})" if error and error.status else ""
        took = duration(call.call.completed_at - call.call.received_at)
        self._page.line((f"✗ call {call.number} {call.call.outcome} after {took}{why}{status}", "red"), indent=INDENT)
        if error:
            self._page.shortened(error.message, READ_LINES, indent=2 * INDENT)

    def _who(self, body: dict[str, Any], said: list[CallStory]) -> str:
        if body.get("role") == "tool":
            name = self._tools.get(str(body.get("tool_call_id"))) or body.get("name")
            return f"  {name}" if name else ""
        if body.get("role") != "assistant":
            return ""
        if not said:
            return "  worded by the harness: no call sampled this"
        return "  " + "; ".join(map(self._sampled, said))

    def _sampled(self, told: CallStory) -> str:
        call = told.call
        facts = [f"call {told.number}", f"+{duration(call.received_at - self._started_at)}"]
        facts += [f"{call.sampled_tokens:,} tokens", call.finish_reason or "no finish reason"]
        facts += [f"not trained: {told.masked}"] if told.masked else []
        facts += [f"disowned: {told.disowned}"] if told.disowned else []
        return ", ".join(facts)

    def _called(self, name: str, arguments: str, lines: int) -> None:
        self._page.line(("→ ", "bold"), (name, "bold"), indent=INDENT)
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            self._page.shortened(arguments, lines, indent=2 * INDENT)
            return
        for key, value in decoded.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            is_long = "\n" in written or len(written) > LINE
            self._page.line((f"{key}: ", "dim"), "" if is_long else written, indent=2 * INDENT)
            if is_long:
                self._page.shortened(written, lines, indent=3 * INDENT)
