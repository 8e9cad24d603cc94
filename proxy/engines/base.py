"""The interface of an engine: a canonical request in, an answer with its exact tokens out."""

from __future__ import annotations

from typing import ClassVar, Protocol

from proxy.chat import Answer, ChatRequest


class Engine(Protocol):
    """A client of one inference server. A plug-in is called with the server's URL, its model and `logprobs_mode`, and if the engine
    has an `api_key_file` with `api_key`. A plug-in may also be a `ReportsStart` (`process.py`) and a `StatesContext` (`context.py`)."""

    owns_prompts: ClassVar[bool]
    """True if `complete` continues the tokens of `ChatRequest.continued`; False if the server renders each prompt anew."""

    async def start(self) -> None:
        """Open what calls need; the server need not be up."""

    async def stop(self) -> None:
        """Close connections; calls in flight fail."""

    async def complete(self, request: ChatRequest, session_id: str) -> Answer:
        """Make one attempt at one call; cancelling it cancels the call at the server.

        Raises EngineError for anything but a whole answer: nothing is repaired or made up.
        """

    async def count_tokens(self, request: ChatRequest) -> int:
        """The length of the prompt that the server renders for a request; nothing is sampled. Raises EngineError."""

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of tokens by the server's tokenizer, special tokens by their names. Raises EngineError."""

    async def is_healthy(self) -> bool:
        """True if the server would take a call now; returns within seconds."""
