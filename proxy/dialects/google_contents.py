"""The contents of a Google request as canonical messages.

Rules:
- Neighbouring model contents are one turn: the official client's chats keep each chunk of a stream as a content of its own. A turn's texts
  are one text, before its calls; an empty text is none. Other contents stay one message each, with several texts as a list of parts.
  System contents keep their place.
- A thoughtSignature that the proxy made, on any part, is the turn's reasoning and wins over thought parts. Other signatures have no effect,
  also the literal `skip_thought_signature_validator` of Gemini CLI.
- A call without an id gets one by its position. A functionResponse belongs to the call with its id. If either has no id, it belongs to the
  first unanswered call with its name in the turn before, otherwise to the first unanswered one.
- A response with `output`, `result` or `content` alone (beside a `name`, which opencode repeats) is that value: text as it is, anything
  else as compact JSON. Any other response, also with an `error`, is the whole object as compact JSON.
- Images are carried, by value or by http address, sounds by value, and text files as text; for a document the model reads that it isn't
  shown. Videos, and images and sounds that can't be fetched from here, are refused. Beside a functionResponse, where the model requested
  them, they and sounds are treated like documents, so that reading a file ends no session. Code that Google ran, and its output, is text.
"""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from proxy import chat
from proxy.chat import AudioPart, AudioUrl, ImagePart, ImageUrl, Message, TextPart, ToolCall
from proxy.dialects import signature
from proxy.dialects.codec import invalid
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
"""Prefix of the ids of calls that came without one."""
UNREADABLE = ("audio/", "video/", "image/")
"""Kinds of files that must not be dropped silently."""
RESPONSE_KEYS = frozenset({"output", "result", "content"})
FieldPart = tuple[str, Part]
"""A part's path in the request, and the part."""


def messages_of(wire: GenerateContentRequest) -> list[Message]:
    """The messages of a request, the system instruction first. Raises RefusalError, naming the field."""
    transcript = _Transcript()
    if wire.system_instruction is not None:
        transcript.add("system", _parts(wire.system_instruction, "systemInstruction"))
    turns = [
        (_role(content, f"contents[{at}]"), _parts(content, f"contents[{at}]"))
        for at, content in enumerate(wire.contents or ())
    ]
    for role, run in groupby(turns, key=lambda turn: turn[0]):
        if role == "model":
            transcript.add_turn([part for _, parts in run for part in parts])
        else:
            for _, parts in run:
                transcript.add("system" if role == "system" else "user", parts)
    if all(message.role == "system" for message in transcript.messages):
        raise invalid("contents", "contents is not specified")
    return transcript.messages


def _parts(content: Content | str, field: str) -> list[FieldPart]:
    parts: Sequence[Part | str] = [content] if isinstance(content, str) else content.parts or ()
    return [
        (f"{field}.parts[{at}]", Part(text=part) if isinstance(part, str) else part) for at, part in enumerate(parts)
    ]


def _role(content: Content | str, field: str) -> str:
    """The content's role; without one it is the model's if it has calls, otherwise the user's."""
    if isinstance(content, str):
        return "user"
    if not content.role:
        calls = any(part.function_call is not None for _, part in _parts(content, field))
        return "model" if calls else "user"
    if content.role not in ROLES:
        raise invalid(f"{field}.role", f"please use a valid role: user, model; got {content.role!r}")
    return ROLES[content.role]


class _Transcript:
    """Messages of the contents read so far; matches responses with calls."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls = 0
        self._unanswered: list[ToolCall] = []
        """Calls of the model's last turn."""

    def add_turn(self, parts: Sequence[FieldPart]) -> None:
        """Add a turn of the model."""
        content: list[chat.Part] = []
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
                content += _carried(part, field, was_requested=False)
        if not parts:
            return
        reasoning = sealed if sealed is not None else "".join(thoughts)
        self.messages.append(
            Message("assistant", content=_turn_content(content), reasoning=reasoning or None, tool_calls=calls)
        )
        self._unanswered = list(calls)

    def add(self, role: chat.Role, parts: Sequence[FieldPart]) -> None:
        """Add a content of any other role: text and files are one message, each function's response is one in its place."""
        was_requested = any(part.function_response is not None for _, part in parts)
        content: list[chat.Part] = []
        for field, part in parts:
            if part.function_response is None:
                content += _carried(part, field, was_requested=was_requested)
                continue
            self._add_message(role, content)
            content = []
            self._respond(part.function_response, f"{field}.functionResponse")
        self._add_message(role, content)

    def _add_message(self, role: chat.Role, content: list[chat.Part]) -> None:
        if len(content) == 1 and isinstance(content[0], TextPart):
            self.messages.append(Message(role, content=content[0].text))
        elif content:
            self.messages.append(Message(role, content=content))

    def _call(self, wire: FunctionCall, field: str) -> ToolCall:
        # An empty name is one that the model has sampled.
        if wire.name is None:
            raise invalid(f"{field}.functionCall.name", "expected the function's name")
        return ToolCall(wire.id or self._made_id(), chat.FunctionCall(wire.name, _compact(wire.args or {})))

    def _respond(self, wire: FunctionResponse, field: str) -> None:
        call = self._call_of(wire)
        if call is not None:
            self._unanswered.remove(call)
        text = _rendered(wire)
        files = [
            carried
            for at, part in enumerate(wire.parts or ())
            for carried in _carried(part, f"{field}.parts[{at}]", was_requested=True)
        ]
        content: str | list[chat.Part] = [*([TextPart(text)] if text else []), *files] if files else text
        call_id = call.id if call is not None else wire.id or self._made_id()
        self.messages.append(Message("tool", content=content, tool_call_id=call_id, name=wire.name))

    def _call_of(self, wire: FunctionResponse) -> ToolCall | None:
        candidates = self._unanswered
        if wire.id:
            with_id = next((call for call in candidates if call.id == wire.id), None)
            if with_id is not None:
                return with_id
            candidates = [call for call in candidates if call.id.startswith(MADE_ID)]
        first = candidates[0] if candidates else None
        return next((call for call in candidates if call.function.name == wire.name), first)

    def _made_id(self) -> str:
        self._calls += 1
        return f"{MADE_ID}{self._calls}"


def _turn_content(parts: list[chat.Part]) -> str | list[chat.Part] | None:
    """A turn's texts as one text; a list only if there is more than text."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "".join(texts) or None if len(texts) == len(parts) else parts


def _carried(part: Part, field: str, *, was_requested: bool) -> list[chat.Part]:
    """The canonical parts of a part, if any. Files that the model requested are never refused."""
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
    if carried is not None and not (was_requested and isinstance(carried, AudioPart)):
        return [carried]
    if was_requested or not kind.startswith(UNREADABLE):
        return [TextPart(f"[{kind or 'file'}: not shown]")]
    raise invalid(
        field, f"expected an image by value or http address, a sound by value, text or a document, got {kind!r}"
    )


File = tuple[str, chat.Part | None]
"""A file's MIME type, and the part that reaches the model, if any."""


def _inline(blob: Blob) -> File:
    kind, data = blob.mime_type or "", _standard_base64(blob.data or "")
    if kind.startswith("image/"):
        return kind, ImagePart(ImageUrl(f"data:{kind};base64,{data}"))
    if kind.startswith("audio/"):
        return kind, AudioPart(AudioUrl(f"data:{kind};base64,{data}"))
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
    value = wire.response
    if isinstance(value, dict):
        known = {key: value[key] for key in value if key != "name" or value[key] != wire.name}
        only = next(iter(known), None)
        if len(known) == 1 and only in RESPONSE_KEYS:
            value = known[only]
    if value is None:
        return ""
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    """JSON that a client parsed, in the form that the log keeps."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _standard_base64(data: str) -> str:
    """Base64 in the standard alphabet; Python's clients write the URL-safe one, JavaScript's the standard one."""
    standard = data.replace("-", "+").replace("_", "/")
    return standard + "=" * (-len(standard) % 4)


def sealed(reasoning: str) -> str:
    """A signature in Base64: Google's Python client decodes it as bytes, the JavaScript client keeps it as text."""
    return base64.b64encode(signature.seal(reasoning).encode()).decode()


def _unsealed(wire: str | None) -> str | None:
    try:
        return signature.unseal(base64.b64decode(_standard_base64(wire), validate=True).decode()) if wire else None
    except ValueError:
        return None
