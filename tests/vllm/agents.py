"""The same small agent four times, each on a provider's official client: asks, runs the tools that are called, tells their results.

An agent ends where an answer calls no tool, or after `work.TURNS` answers. Every answer is one call at the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anthropic import Anthropic
from google import genai
from google.genai import types as google
from openai import OpenAI

from tests.vllm.work import TOOLS, TURNS, Work, schema

MAX_TOKENS = 160
"""Of one answer; a call of a tool takes 40 to 70."""


@dataclass(frozen=True)
class Settings:
    """How an agent wants to be answered; None: as the provider's client leaves it."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """OpenAI's APIs have none, and Anthropic's newest client takes none of the three: sent beside their own fields."""

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these names that are set."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


Agent = Callable[[Mapping[str, str], Work, Settings], int]
"""Works with a session's URLs and key; how many answers it got."""


def openai_chat(env: Mapping[str, str], work: Work, settings: Settings) -> int:
    """OpenAI's Chat Completions, streamed."""
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": schema(parameters)}}
        for name, parameters in TOOLS.items()
    ]
    history: list[Any] = [{"role": "user", "content": work.request}]
    beside = settings.given("top_k")
    with OpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0) as client:
        for turn in range(1, TURNS + 1):
            with client.chat.completions.stream(
                model="any", messages=history, tools=tools, max_tokens=MAX_TOKENS, extra_body=beside,
                **settings.given("temperature", "top_p"),
            ) as events:  # fmt: skip
                message = events.get_final_completion().choices[0].message
            history.append(message.to_dict())
            for call in message.tool_calls or ():
                result = work.answer(call.function.name, call.function.arguments)
                history.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not message.tool_calls:
                return turn
    return TURNS


def openai_responses(env: Mapping[str, str], work: Work, settings: Settings) -> int:
    """OpenAI's Responses, not stored: each request carries the whole conversation."""
    tools: Any = [
        {"type": "function", "name": name, "parameters": schema(parameters), "strict": False}
        for name, parameters in TOOLS.items()
    ]
    history: list[Any] = [{"role": "user", "content": work.request}]
    beside = settings.given("top_k")
    with OpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0) as client:
        for turn in range(1, TURNS + 1):
            response = client.responses.create(
                model="any", input=history, tools=tools, store=False, max_output_tokens=MAX_TOKENS, extra_body=beside,
                **settings.given("temperature", "top_p"),
            )  # fmt: skip
            history += [item.to_dict() for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            for call in calls:
                result = work.answer(call.name, call.arguments)
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
            if not calls:
                return turn
    return TURNS


def anthropic_messages(env: Mapping[str, str], work: Work, settings: Settings) -> int:
    """Anthropic's Messages."""
    tools: Any = [{"name": name, "input_schema": schema(parameters)} for name, parameters in TOOLS.items()]
    history: list[Any] = [{"role": "user", "content": work.request}]
    beside = settings.given("temperature", "top_p", "top_k")
    with Anthropic(base_url=env["ANTHROPIC_BASE_URL"], api_key=env["ANTHROPIC_API_KEY"], max_retries=0) as client:
        for turn in range(1, TURNS + 1):
            message = client.messages.create(
                model="any", messages=history, tools=tools, max_tokens=MAX_TOKENS, extra_body=beside
            )  # fmt: skip
            history.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
            calls = [block for block in message.content if block.type == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": work.answer(call.name, call.input)}
                for call in calls
            ]
            if not calls:
                return turn
            history.append({"role": "user", "content": results})
    return TURNS


def google_generate_content(env: Mapping[str, str], work: Work, settings: Settings) -> int:
    """Google's generateContent."""
    declared = [
        google.FunctionDeclaration(name=name, parameters_json_schema=schema(parameters))
        for name, parameters in TOOLS.items()
    ]
    config = google.GenerateContentConfig(
        tools=[google.Tool(function_declarations=declared)],
        max_output_tokens=MAX_TOKENS,
        automatic_function_calling=google.AutomaticFunctionCallingConfig(disable=True),
        **settings.given("temperature", "top_p", "top_k"),
    )
    history: list[Any] = [google.Content(role="user", parts=[google.Part(text=work.request)])]
    options = google.HttpOptions(base_url=env["GOOGLE_GEMINI_BASE_URL"])
    with genai.Client(api_key=env["GEMINI_API_KEY"], http_options=options) as client:
        for turn in range(1, TURNS + 1):
            response = client.models.generate_content(model="any", contents=history, config=config)
            assert response.candidates is not None
            content = response.candidates[0].content
            assert content is not None
            history.append(content)
            calls = [part.function_call for part in content.parts or () if part.function_call is not None]
            results = [
                google.Part.from_function_response(
                    name=call.name or "", response={"output": work.answer(call.name or "", call.args or {})}
                )
                for call in calls
            ]
            if not calls:
                return turn
            history.append(google.Content(role="user", parts=results))
    return TURNS


AGENTS: dict[str, Agent] = {
    agent.__name__: agent for agent in (openai_chat, openai_responses, anthropic_messages, google_generate_content)
}
