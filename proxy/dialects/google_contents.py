"""The contents of a Google request as canonical messages.

Rules:
- model contents in a row are one turn: the official client's chats keep each chunk of a stream as a content of its own. A turn's texts
  are one text, before its calls; an empty one is none. Other contents stay one message each, texts in a row a list; system where it stands.
- A thoughtSignature of ours, on whatever part, is the turn's reasoning and wins over thought parts; others (also the literal
  `skip_thought_signature_validator` of Gemini CLI) tell nothing.
- A call without an id gets one by its position. A functionResponse belongs to the call of its id; where either has none, to the first
  unanswered call of its name in the turn before, else to the first unanswered one.
- A response that is only `output`, `result` or `content` (beside a `name`, which opencode repeats) is that value, text as it is,
  anything else compact JSON; any other response, an `error` among them, is the whole object as compact JSON.
- Images are carried, by value or by http address, text files as text; of a document the model is told that it isn't shown. Audio, video
  and images that nobody here can fetch are refused; beside a functionResponse, where the model asked for them, they are told like
  documents, so that reading a file ends no session. Code that Google ran, and its output, is text.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from proxy import chat
from proxy.chat import ImagePart, ImageUrl, Message, TextPart, ToolCall
from proxy.dialects import signature
from proxy.errors import Refusal, RefusalError
from proxy.wire.google_generate_content import (
    Blob,
    Content,
    FileData,
    FunctionCall,
    FunctionResponse,
    GenerateContentRequest,
    Part,
)

ROLES = {"model": "model", "user": "user", "function": "user", "tool": "user", "system": "system"}
MADE_ID = "polar_call_"
"""Begins the ids of calls that came without one."""
UNREADABLE = ("audio/", "video/", "image/")
"""Kinds of files that can't be left out unseen."""
RESPONSE_KEYS = frozenset({"output", "result", "content"})
FieldPart = tuple[str, Part]
"""A part and where it stands."""


def messages_of(wire: GenerateContentRequest) -> list[Message]:
    """The messages of a request, the system's first. Raises RefusalError, naming the field."""
    transcript = _Transcript()
    if wire.system_instruction is not None:
        transcript.said("system", _parts(wire.system_instruction, "systemInstruction"))
    turns = [
        (_role(content, f"contents[{at}]"), _parts(content, f"contents[{at}]"))
        for at, content in enumerate(wire.contents or ())
    ]
    for role, run in groupby(turns, key=lambda turn: turn[0]):
        if role == "model":
            transcript.answered([part for _, parts in run for part in parts])
        else:
            for _, parts in run:
                transcript.said("system" if role == "system" else "user", parts)
    if all(message.role == "system" for message in transcript.messages):
        raise invalid("contents", "contents is not specified")
    return transcript.messages


def _parts(content: Content | str, field: str) -> list[FieldPart]:
    parts: Sequence[Part | str] = [content] if isinstance(content, str) else content.parts or ()
    return [
        (f"{field}.parts[{at}]", Part(text=part) if isinstance(part, str) else part) for at, part in enumerate(parts)
    ]


def _role(content: Content | str, field: str) -> str:
    """Without one a content is the user's, or the model's where it calls."""
    if isinstance(content, str):
        return "user"
    if not content.role:
        calls = any(part.function_call is not None for _, part in _parts(content, field))
        return "model" if calls else "user"
    if content.role not in ROLES:
        raise invalid(f"{field}.role", f"please use a valid role: user, model; got {content.role!r}")
    return ROLES[content.role]


class _Transcript:
    """Contents become messages, in order; calls without ids are matched with what answers them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls = 0
        self._unanswered: list[ToolCall] = []
        """Of the last turn of the model's."""

    def answered(self, parts: Sequence[FieldPart]) -> None:
        """A turn of the model's."""
        said: list[chat.Part] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        sealed: str | None = None
        for field, part in parts:
            sealed = sealed if sealed is not None else _unsealed(part.thought_signature)
            if part.function_call is not None:
                calls.append(self._call(part.function_call, field))
            elif part.thought:
                thoughts.append(part.text or "")
            else:
                said += _carried(part, field, asked_for=False)
        if not parts:
            return
        reasoning = sealed if sealed is not None else "".join(thoughts)
        self.messages.append(Message("assistant", content=_spoken(said), reasoning=reasoning or None, tool_calls=calls))
        self._unanswered = list(calls)

    def said(self, role: chat.Role, parts: Sequence[FieldPart]) -> None:
        """What isn't the model's: text and files are a message, each function's response is one where it stands."""
        asked_for = any(part.function_response is not None for _, part in parts)
        said: list[chat.Part] = []
        for field, part in parts:
            if part.function_response is None:
                said += _carried(part, field, asked_for=asked_for)
                continue
            self._say(role, said)
            said = []
            self._respond(part.function_response, f"{field}.functionResponse")
        self._say(role, said)

    def _say(self, role: chat.Role, said: list[chat.Part]) -> None:
        if len(said) == 1 and isinstance(said[0], TextPart):
            self.messages.append(Message(role, content=said[0].text))
        elif said:
            self.messages.append(Message(role, content=said))

    def _call(self, wire: FunctionCall, field: str) -> ToolCall:
        if not wire.name:
            raise invalid(f"{field}.functionCall.name", "expected the function's name")
        return ToolCall(wire.id or self._made_id(), chat.FunctionCall(wire.name, compact(wire.args or {})))

    def _respond(self, wire: FunctionResponse, field: str) -> None:
        call = self._call_of(wire)
        if call is not None:
            self._unanswered.remove(call)
        text = _rendered(wire)
        files = [
            carried
            for at, part in enumerate(wire.parts or ())
            for carried in _carried(part, f"{field}.parts[{at}]", asked_for=True)
        ]
        content: str | list[chat.Part] = [*([TextPart(text)] if text else []), *files] if files else text
        call_id = call.id if call is not None else wire.id or self._made_id()
        self.messages.append(Message("tool", content=content, tool_call_id=call_id, name=wire.name))

    def _call_of(self, wire: FunctionResponse) -> ToolCall | None:
        open_to = self._unanswered
        if wire.id:
            named = next((call for call in open_to if call.id == wire.id), None)
            if named is not None:
                return named
            open_to = [call for call in open_to if call.id.startswith(MADE_ID)]
        return next((call for call in open_to if call.function.name == wire.name), open_to[0] if open_to else None)

    def _made_id(self) -> str:
        self._calls += 1
        return f"{MADE_ID}{self._calls}"


def _spoken(said: Sequence[chat.Part]) -> str | list[chat.Part] | None:
    """A model's words as one text; a list only where there is more than words."""
    texts = [part.text for part in said if isinstance(part, TextPart)]
    return "".join(texts) or None if len(texts) == len(said) else list(said)


def _carried(part: Part, field: str, *, asked_for: bool) -> list[chat.Part]:
    """What of a part reaches the model, if anything. Files `asked_for` by the model are never refused."""
    if part.thought:
        return []
    if part.text is not None:
        return [TextPart(part.text)]
    if part.executable_code is not None:
        return [TextPart(f"```{(part.executable_code.language or '').lower()}\n{part.executable_code.code}\n```\n")]
    if part.code_execution_result is not None:
        return [TextPart(f"```\n{part.code_execution_result.output}\n```\n")]
    if part.inline_data is None and part.file_data is None:
        return []
    kind, carried = _inline(part.inline_data) if part.inline_data is not None else _linked(part.file_data or FileData())
    if carried is not None:
        return [carried]
    if asked_for or not kind.startswith(UNREADABLE):
        return [TextPart(f"[{kind or 'file'}: not shown]")]
    raise invalid(field, f"expected an image by value or http address, text or a document, got {kind!r}")


File = tuple[str, chat.Part | None]
"""A file's MIME type, and what of it reaches the model."""


def _inline(blob: Blob) -> File:
    kind, data = blob.mime_type or "", _standard_base64(blob.data or "")
    if kind.startswith("image/"):
        return kind, ImagePart(ImageUrl(f"data:{kind};base64,{data}"))
    if kind.startswith("text/") or kind == "application/json":
        with suppress(ValueError):
            return kind, TextPart(base64.b64decode(data).decode(errors="replace"))
    return kind, None


def _linked(file: FileData) -> File:
    uri = file.file_uri or ""
    kind = file.mime_type or mimetypes.guess_type(uri)[0] or ""
    is_image = kind.startswith("image/") and uri.startswith(("http://", "https://"))
    return kind, ImagePart(ImageUrl(uri)) if is_image else None


def _rendered(wire: FunctionResponse) -> str:
    told = wire.response
    if isinstance(told, dict):
        known = {key: told[key] for key in told if key != "name" or told[key] != wire.name}
        only = next(iter(known), None)
        if len(known) == 1 and only in RESPONSE_KEYS:
            told = known[only]
    if told is None:
        return ""
    return told if isinstance(told, str) else compact(told)


def compact(told: Any) -> str:
    """As the log keeps JSON that a client parsed."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def _standard_base64(data: str) -> str:
    """Python's clients write the URL-safe alphabet, JavaScript's the standard one."""
    standard = data.replace("-", "+").replace("_", "/")
    return standard + "=" * (-len(standard) % 4)


def sealed(reasoning: str) -> str:
    """Bytes to Google's clients, which Python's reads as Base64 and JavaScript's as it is."""
    return base64.b64encode(signature.seal(reasoning).encode()).decode()


def _unsealed(wire: str | None) -> str | None:
    try:
        return signature.unseal(base64.b64decode(_standard_base64(wire), validate=True).decode()) if wire else None
    except (binascii.Error, ValueError):
        return None


def invalid(field: str, why: str) -> RefusalError:
    """The refusal of a field."""
    return RefusalError(Refusal.INVALID, f"{field}: {why}", field=field)
