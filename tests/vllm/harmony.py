"""Long conversations that drift, on vLLM's own rendering of gpt-oss: its functions, the library `openai-harmony` and the real vocabulary.

python -m tests.vllm.harmony TALKS, with the python of .venv-vllm and TIKTOKEN_ENCODINGS_BASE; prints the outcome as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import msgspec
import numpy as np
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionToolsParam,
)
from vllm.entrypoints.openai.parser import harmony_utils

from proxy.chat import ChatRequest, Message
from tests.proxy.engines.chat_templates import TOOLS, Family
from tests.proxy.engines.template_talks import outcome
from topics.types.tokens import Ids


class Harmony:
    """gpt-oss as `OnlineRenderer._make_request_with_harmony` of vLLM 0.32 renders it."""

    family = Family("gpt-oss by vLLM", "", "<|return|>", "<|call|>", calls_at_once=1)

    def __init__(self) -> None:
        self._encoding = harmony_utils.get_encoding()
        self._tools = [ChatCompletionToolsParam(**tool) for tool in TOOLS]

    def _rendered(self, messages: Sequence[Message]) -> list[int]:
        instructions, rest = harmony_utils.extract_instructions_from_messages(msgspec.to_builtins(messages))
        preamble = harmony_utils.build_harmony_preamble(
            instructions=instructions, tools=self._tools, with_custom_tools=True
        )
        conversation = harmony_utils.parse_chat_inputs_to_harmony_messages(rest)
        ids: list[int] = harmony_utils.render_for_completion([*preamble, *conversation])
        return ids

    def text(self, messages: Sequence[Message]) -> str:
        """The rendering of a conversation, with what begins an answer."""
        return str(self._encoding.decode(self._rendered(messages)))

    async def render(self, request: ChatRequest) -> Ids:
        """The rendering's token ids."""
        return np.array(self._rendered(request.messages), np.int32)

    def ids(self, text: str) -> Ids:
        """Token ids, as the tokenizer cuts the text."""
        return np.array(self._encoding.encode(text, allowed_special="all"), np.int32)

    def spelled(self, ids: Ids) -> str:
        """The text of token ids."""
        return str(self._encoding.decode(ids.tolist()))


if __name__ == "__main__":
    print(json.dumps(asdict(outcome(Harmony(), int(sys.argv[1])))))
