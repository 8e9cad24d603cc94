"""A stand-in for vLLM that costs next to nothing, so that a benchmark on few cores measures what lies before it.

    python -m benchmarks.stub_engine --ready-file F

No tokenizer, no template, no sampling: a chat completion of exactly as many tokens as were asked for, cut out of texts made at the start,
in vLLM's wire format with `prompt_token_ids`, `token_ids` and logprobs where they are asked for. A prompt has a token for each 4 bytes
of the request; its ids are a stretch of one fixed sequence whose beginning the number in the prompt's text (`NUMBER`) decides, so that a
conversation which grows gives prompts that grow, sampled tokens included. A stream has a chunk for each token and leaves in one write.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from itertools import accumulate
from pathlib import Path
from typing import cast

import msgspec
import uvloop

MODEL = "polar-stub"
NUMBER = re.compile(rb"call ([0-9]{8})")
TURN = b"turn "
"""Before a question's number, three digits."""
BYTES_PER_TOKEN = 4
IDS = 262_144
"""Of the sequence; a prompt and its answer lie within `SPAN` of their start."""
SPAN = 65_536
STRIDE = 4099
VOCABULARY = 151_936
"""Qwen's: most ids have five or six digits."""
ENTRIES = 8_192
"""Logprob entries; each answer takes some in a row."""
MAX_TOKENS = 2_048
LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
STREAM_HEAD = {"id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": 0, "model": MODEL}


class Asked(msgspec.Struct):
    """What of a request decides its answer."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    return_token_ids: bool | None = None
    logprobs: bool | None = None

    @property
    def tokens(self) -> int:
        return min(self.max_completion_tokens or self.max_tokens or 16, MAX_TOKENS)


def answer_text(tokens: int, turn: int) -> str:
    """What an answer of so many tokens says to the question of a turn: 4 characters each, and no two turns the same."""
    words = f"{turn:03d} times the fox saw all "
    return (words * (tokens * BYTES_PER_TOKEN // len(words) + 1))[: tokens * BYTES_PER_TOKEN]


class Texts:
    """What answers are cut out of."""

    def __init__(self) -> None:
        draw = random.Random(0)
        self._ids, self._id_at = _joined([str(draw.randrange(VOCABULARY)) for _ in range(IDS)])
        entries = []
        for _ in range(ENTRIES):
            logprob = -draw.expovariate(3)
            entries.append(
                json.dumps({"token": "the ", "logprob": logprob, "bytes": [116, 104, 101, 32], "top_logprobs": []})
            )
        self._entries, self._entry_at = _joined(entries)

    def body(self, asked: Asked, prompt: int, number: int, turn: int = 0) -> bytes:
        """A chat completion."""
        tokens = asked.tokens
        start = number * STRIDE % (IDS - SPAN)
        logprobs, ids, prompt_ids = b"null", b"null", b"null"
        if asked.logprobs:
            at = number * STRIDE % (ENTRIES - MAX_TOKENS)
            logprobs = b'{"content":[' + self._entries[self._entry_at[at] : self._entry_at[at + tokens] - 1] + b"]}"
        if asked.return_token_ids:
            between = start + prompt
            prompt_ids = b"[" + self._ids[self._id_at[start] : self._id_at[between] - 1] + b"]"
            ids = b"[" + self._ids[self._id_at[between] : self._id_at[between + tokens] - 1] + b"]"
        return (
            b'{"id":"chatcmpl-stub","object":"chat.completion","created":0,"model":"polar-stub","choices":[{"index":0,'
            b'"message":{"role":"assistant","content":"%b","refusal":null,"tool_calls":[],"reasoning":null},"logprobs":%b,'
            b'"finish_reason":"stop","stop_reason":null,"token_ids":%b}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,'
            b'"total_tokens":%d},"prompt_logprobs":null,"prompt_token_ids":%b}'
        ) % (answer_text(tokens, turn).encode(), logprobs, ids, prompt, tokens, prompt + tokens, prompt_ids)

    def stream(self, asked: Asked, prompt: int) -> bytes:
        """The same as events, for who asks plainly: without ids."""
        tokens = asked.tokens
        text = answer_text(tokens, 0)
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{"content": text[at : at + BYTES_PER_TOKEN]} for at in range(0, len(text), BYTES_PER_TOKEN)]
        events = [_event(STREAM_HEAD | {"choices": [_delta(delta, None)]}) for delta in deltas]
        events.append(_event(STREAM_HEAD | {"choices": [_delta({}, "stop")]}))
        if (asked.stream_options or {}).get("include_usage"):
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            events.append(_event(STREAM_HEAD | {"choices": [], "usage": usage}))
        return b"".join([*events, b"data: [DONE]\n\n"])


class Connection(asyncio.Protocol):
    """One client, one request after the other."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._held = bytearray()
        self._whole = 0
        """Bytes of the request that is coming in; 0 while its head isn't there."""
        self._streams: dict[tuple[int, bool], bytes] = {}
        self._requests = msgspec.json.Decoder(Asked)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._held:
            if not self._whole:
                end = self._held.find(b"\r\n\r\n")
                if end < 0:
                    return
                length = LENGTH.search(self._held, 0, end)
                self._body = end + 4
                self._whole = self._body + (int(length[1]) if length else 0)
            if len(self._held) < self._whole:
                return
            request = bytes(self._held[: self._whole])
            del self._held[: self._whole]
            self._whole = 0
            self._transport.write(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        line, body = request[: request.index(b"\r\n")], request[self._body :]
        if b"/chat/completions" not in line:
            model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "stub", "max_model_len": SPAN}
            return _response(json.dumps({"object": "list", "data": [model]}).encode(), b"application/json")
        asked = self._requests.decode(body)
        prompt = min(len(body) // BYTES_PER_TOKEN, SPAN - MAX_TOKENS)
        if asked.stream:
            wanted = asked.tokens, bool(asked.stream_options)
            if wanted not in self._streams:
                self._streams[wanted] = self._texts.stream(asked, prompt)
            return _response(self._streams[wanted], b"text/event-stream")
        found = NUMBER.search(body)
        number, turn = (int(found[1]), int(body[(at := body.rfind(TURN) + len(TURN)) : at + 3])) if found else (0, 0)
        return _response(self._texts.body(asked, prompt, number, turn), b"application/json")


async def serve(ready_file: Path) -> None:
    """Serves until the process is ended."""
    texts = Texts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(texts), "127.0.0.1", 0)
    ready_file.write_text(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}))
    await server.serve_forever()


def _joined(pieces: list[str]) -> tuple[bytes, list[int]]:
    """The pieces, a comma after each, and where each begins; ASCII only."""
    return ",".join(pieces).encode() + b",", [0, *accumulate(len(piece) + 1 for piece in pieces)]


def _delta(delta: dict[str, str], reason: str | None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _event(payload: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def _response(body: bytes, kind: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nServer: stub\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        kind,
        len(body),
        body,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--ready-file", type=Path, required=True)
    uvloop.run(serve(parser.parse_args().ready_file))
