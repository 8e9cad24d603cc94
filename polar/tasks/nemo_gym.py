"""The parts of a NeMo-Gym row: the fields of its request to the model, and the texts of the request's input.

NVIDIA-NeMo/Gym at 07d6b0d07 (August 2026): `responses_create_params` is a request of the OpenAI Responses API (`nemo_gym/openai_utils.py`),
`agent_ref` names the agent server, and all other fields are data of the resources server that verifies the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REQUEST = "responses_create_params"
INPUT = f"{REQUEST}.input"
INSTRUCTIONS = f"{REQUEST}.instructions"
TEXTS = (INPUT, INSTRUCTIONS)
"""Fields of `expanded` that a template can name."""
SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = ("input_text", "text")


def expanded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The row with each field of its request as a field of its own, like `responses_create_params.temperature`.

    INPUT is the user's text, and INSTRUCTIONS the request's instructions with the system and developer messages of its input. Where the
    input has another form, both stay as they are, for `text` to refuse.
    """
    request = fields[REQUEST]
    if not isinstance(request, Mapping):
        return {**fields, INPUT: "", INSTRUCTIONS: ""}
    made = {name: value for name, value in fields.items() if name != REQUEST}
    made |= {f"{REQUEST}.{name}": value for name, value in request.items()}
    instructions = made.get(INSTRUCTIONS) or ""
    try:
        system, user = _messages(made.get(INPUT) or "")
    except ValueError:
        return {**made, INSTRUCTIONS: instructions}  # with INPUT as it is
    if isinstance(instructions, str):
        instructions = "\n\n".join(filter(None, (instructions, *system)))
    return {**made, INSTRUCTIONS: instructions, INPUT: user}


def text(value: Any) -> str:
    """The value of INPUT or INSTRUCTIONS in an expanded row. Raises ValueError for what can't be an instruction."""
    if isinstance(value, str):
        return value
    _messages(value)
    raise ValueError("must be text")


def _messages(value: Any) -> tuple[list[str], str]:
    """The texts of the system and developer messages, and of the one user message after them. Raises ValueError."""
    if isinstance(value, str):
        return [], value
    if not isinstance(value, list):
        raise ValueError("must be text or a list of messages")  # noqa: TRY004
    system: list[str] = []
    user: str | None = None
    for number, item in enumerate(value, 1):
        kind = item.get("role") or item.get("type") if isinstance(item, Mapping) else type(item).__name__
        if user is None and kind in SYSTEM_ROLES:
            system.append(_content(item, number))
        elif user is None and kind == "user":
            user = _content(item, number)
        else:
            raise ValueError(
                f"item {number} is of {kind!r}; system and developer messages and one user message after them are carried, "
                "since no session begins with an earlier conversation"
            )
    return system, user or ""


def _content(message: Mapping[str, Any], number: int) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"item {number} has no content")  # noqa: TRY004
    kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in content]
    if others := [kind for kind in kinds if kind not in TEXT_PARTS]:
        raise ValueError(f"item {number} has {others[0]!r}; an instruction is text alone")
    return "".join(str(part.get("text", "")) for part in content)
