"""The tiny model once more, trained to think a sentence before each turn, for servers whose template strips that from history.

python -m tests.vllm.thinking DIR, with the arguments of examples.tiny_model and the python of .venv-vllm
"""

from __future__ import annotations

import sys

THOUGHT = (
    "{%- if message.role == 'assistant' %}{{- '<think>Step ' ~ loop.index0 ~ ' of it.</think>\\n' }}{%- endif %}\n"
)
CONTENT = "{{- content }}\n"
ARGUMENTS = "call.function.arguments if call.function.arguments is string else call.function.arguments | tojson"
ANEW = "call.function.arguments | tojson(separators=(',', ':'), sort_keys=true)"


def drifting(template: str) -> str:
    """The model's template as a server has it: earlier turns without what they thought, arguments sorted and without blanks."""
    for part in (THOUGHT, ARGUMENTS):
        assert part in template, part
    return template.replace(THOUGHT, "").replace(ARGUMENTS, ANEW)


if __name__ == "__main__":
    from examples.tiny_model import tokenizer
    from examples.tiny_model.__main__ import main

    assert CONTENT in tokenizer.TEMPLATE
    tokenizer.TEMPLATE = tokenizer.TEMPLATE.replace(CONTENT, THOUGHT + CONTENT)
    sys.exit(main())
