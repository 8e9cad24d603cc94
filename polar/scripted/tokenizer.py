"""The scripted engine's tokenizer: text to token ids and back, exactly.

Invariant: `decode(encode(text)) == text` for every text, and `encode` never yields a special token, whatever the text
looks like: a special token can only be put by its id. So what a user writes can't end a turn or open a tool call.

The vocabulary is `tokenizer.json` beside this file (`examples/train_tokenizer.py` made it). Where special tokens go is
the chat template's business (`polar.scripted.template`).
"""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer as FastTokenizer

SPECIALS: Final = (
    "<|im_start|>",
    "<|im_sep|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
VOCABULARY_FILE: Final = Path(__file__).with_name("tokenizer.json")

# Texts whose ids are remembered: a conversation's earlier messages come back with each of its calls. At 1.6 kB a
# message (400 tokens) a full cache is about 30 MB.
REMEMBERED_TEXTS: Final = 8192


class Tokenizer:
    """A byte-level BPE over a vocabulary file whose special tokens are `SPECIALS`."""

    def __init__(self, file: Path = VOCABULARY_FILE) -> None:
        self._fast = FastTokenizer.from_file(str(file))
        self._fast.encode_special_tokens = True  # else "<|im_end|>" in a text would become an end of turn
        vocabulary: dict[str, int] = self._fast.get_vocab()
        self.special_ids: Final = {name: vocabulary[name] for name in SPECIALS}
        self._bytes: Final = _bytes_by_id(vocabulary)
        self._special: Final = frozenset(self.special_ids.values())
        self._of_byte: Final = {
            raw[0]: token_id
            for token_id, raw in enumerate(self._bytes)
            if len(raw) == 1 and token_id not in self._special
        }
        self.size: Final = len(self._bytes)
        self._remembered = lru_cache(REMEMBERED_TEXTS)(self._encode)

    def encode(self, text: str) -> array[int]:
        """Token ids (int32) of a text between two special tokens; do not change the array, it is shared."""
        return self._remembered(text)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that one token stands for: maybe a part of a character; a special token's own name."""
        return self._bytes[token_id]

    def pieces_of(self, token_id: int) -> list[int]:
        """The tokens of single bytes that say what an ordinary token says; a special token is one piece."""
        raw = self._bytes[token_id]
        return [token_id] if token_id in self._special else [self._of_byte[byte] for byte in raw]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are no whole character become U+FFFD."""
        return b"".join(map(self._bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    @property
    def cache_misses(self) -> int:
        """Texts that had to be encoded so far."""
        return self._remembered.cache_info().misses

    def _encode(self, text: str) -> array[int]:
        return array("i", self._fast.encode(text, add_special_tokens=False).ids)


def _bytes_by_id(vocabulary: dict[str, int]) -> list[bytes]:
    """What each token of a byte-level vocabulary stands for.

    The convention of all byte-level BPE files: a character of printable Latin-1 stands for its own byte, those from
    code point 256 on for the other bytes, in order.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    byte_of = {chr(byte): byte for byte in own} | {chr(256 + n): byte for n, byte in enumerate(others)}
    return [
        token.encode() if token in SPECIALS else bytes(byte_of[char] for char in token)
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
