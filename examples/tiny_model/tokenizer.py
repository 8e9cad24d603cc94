"""The tokenizer: a byte-level BPE of 768 tokens trained on the demonstrations, and the chat template that goes with it.

Invariant: what a model samples, parsed by the hermes parser and rendered again as history, gives the sampled ids back, so that the next
prompt continues the last answer: arguments are written as `json.dumps` separates them, content is trimmed, and nothing stands between
the assistant's header and `<tool_call>`. The template leaves the tools' schemas out: the model knows its three tools by heart.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import random
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.tiny_model.demonstrations import Message, demonstration

VOCABULARY = 768
CONTEXT = 8192
"""Tokens of a conversation that a server takes; the work needs 200."""
PAD, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens of their own, but not special: parsers read them in the text."""
TEXTS = 4000
"""Demonstrations that the vocabulary is trained on."""
ORDINARY = (argparse, difflib)
"""Modules whose text gives the rest of the vocabulary, so that other prompts cost fewer tokens."""

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- set content = (message.content or '') | trim %}
{{- content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if content or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def make(seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on demonstrations of this seed."""
    rng = random.Random(seed)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tags = [AddedToken(tag, special=False) for tag in TAGS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=[PAD, TURN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [_text(demonstration(rng)) for _ in range(TEXTS)] + [inspect.getsource(module) for module in ORDINARY]
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(tags)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, model_max_length=CONTEXT, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def ids(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> list[int]:
    """A conversation as a server renders it."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


def _text(messages: Sequence[Message]) -> str:
    """All words of a conversation, roles included, without special tokens."""
    parts: list[str] = []
    for message in messages:
        parts += [message["role"], message["content"]]
        parts += [json.dumps(dict(call["function"])) for call in message.get("tool_calls", [])]
    return "\n".join(parts)
