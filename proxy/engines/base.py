"""What an engine is: canonical chat in, an answer with its very tokens out."""

from __future__ import annotations

from typing import ClassVar, Protocol

from proxy.chat import Answer, ChatRequest


class Engine(Protocol):
    """One inference server, asked in one way. A plug-in is made with its URL, its model and `logprobs_mode`."""

    owns_prompts: ClassVar[bool]
    """Whether `complete` goes on from the tokens of `ChatRequest.continued`; False: the server renders each prompt anew."""

    async def start(self) -> None:
        """Opens what calls need; doesn't ask whether the server is there."""
        ...

    async def stop(self) -> None:
        """Closes connections; calls in flight fail."""
        ...

    async def complete(self, request: ChatRequest, session_id: str) -> Answer:
        """One try at one call; cancelling it cancels it at the server.

        Raises EngineError for everything that is no whole answer: nothing is mended, nothing is made up.
        """
        ...

    async def count_tokens(self, request: ChatRequest) -> int:
        """Tokens of the prompt that the server makes of a request; nothing is sampled. Raises EngineError."""
        ...

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of tokens, special ones by their names, as the server's own tokenizer tells it. Raises EngineError."""
        ...

    async def is_healthy(self) -> bool:
        """Whether the server would take a call now; known within seconds."""
        ...
