"""The tiny model once more, trained to think a sentence before each turn, for servers whose template strips that from history.

python -m tests.vllm.thinking DIR, with the arguments of examples.tiny_model and the python of .venv-vllm
"""

from __future__ import annotations

import sys

from examples.tiny_model import tokenizer

THOUGHT = (
    "{%- if message.role == 'assistant' %}{{- '<think>Step ' ~ loop.index0 ~ ' of it.</think>\\n' }}{%- endif %}\n"
)
CONTENT = "{{- content }}\n"
ARGUMENTS = "call.function.arguments if call.function.arguments is string else call.function.arguments | tojson"
ANEW = "call.function.arguments | tojson(separators=(',', ':'), sort_keys=true)"
DRIFTING = tokenizer.TEMPLATE.replace(ARGUMENTS, ANEW)
"""For the server: earlier turns without what they thought, and arguments written anew, sorted and without blanks."""

if __name__ == "__main__":
    from examples.tiny_model.__main__ import main

    assert CONTENT in tokenizer.TEMPLATE
    assert ARGUMENTS in tokenizer.TEMPLATE
    tokenizer.TEMPLATE = tokenizer.TEMPLATE.replace(CONTENT, THOUGHT + CONTENT)
    sys.exit(main())
