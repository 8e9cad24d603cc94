"""The scripted engine's tokenizer.

Invariant: `decode(encode(text)) == text`, and `encode` never returns a special token: a user's text can't end a turn or begin a tool call.
Only the chat template (`polar.scripted.template`) inserts special tokens, by id. `examples/train_tokenizer.py` made the vocabulary,
`tokenizer.json` beside this file.
"""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

import re
from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer as FastTokenizer

SPECIALS: Final = ("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
VOCABULARY_FILE: Final = Path(__file__).with_name("tokenizer.json")

# Texts whose ids are cached: each call repeats the conversation's earlier messages. With messages of 1.6 kB (400 tokens)
# a full cache has about 30 MB.
REMEMBERED_TEXTS: Final = 8192
_WORD: Final = re.compile(rb" ?[A-Za-z][a-z]{2,}")


class Tokenizer:
    """A byte-level BPE over a vocabulary file whose special tokens are `SPECIALS`."""

    def __init__(self, file: Path = VOCABULARY_FILE) -> None:
        self._fast, self.special_ids, self._bytes, self.words = _loaded(file)
        self._special: Final = frozenset(self.special_ids.values())
        self._of_byte: Final = {
            raw[0]: token_id
            for token_id, raw in enumerate(self._bytes)
            if len(raw) == 1 and token_id not in self._special
        }
        self.size: Final = len(self._bytes)
        self._remembered = lru_cache(REMEMBERED_TEXTS)(self._encode)

    def encode(self, text: str) -> array[int]:
        """Token ids (int32) of a text between two special tokens. The array is shared: don't change it."""
        return self._remembered(text)

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes, which may be a part of a character; for a special token its name."""
        return self._bytes[token_id]

    def pieces_of(self, token_id: int) -> list[int]:
        """The single-byte tokens that spell an ordinary token; a special token is one piece."""
        raw = self._bytes[token_id]
        return [token_id] if token_id in self._special else [self._of_byte[byte] for byte in raw]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; incomplete characters become U+FFFD."""
        return b"".join(map(self._bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    @property
    def cache_misses(self) -> int:
        return self._remembered.cache_info().misses

    def _encode(self, text: str) -> array[int]:
        return array("i", self._fast.encode(text, add_special_tokens=False).ids)


@cache
def _loaded(file: Path) -> tuple[FastTokenizer, dict[str, int], list[bytes], list[str]]:
    """The tokenizer of a vocabulary file, its special tokens' ids, the bytes of each token, and the words that are one token."""
    fast = FastTokenizer.from_file(str(file))
    fast.encode_special_tokens = True  # otherwise "<|im_end|>" in a text would become an end of turn
    vocabulary: dict[str, int] = fast.get_vocab()
    by_id = _bytes_by_id(vocabulary)
    candidates = [token.decode() for token in by_id if _WORD.fullmatch(token)]
    words = [word for word in candidates if len(fast.encode(word, add_special_tokens=False)) == 1]
    return fast, {name: vocabulary[name] for name in SPECIALS}, by_id, words


def _bytes_by_id(vocabulary: dict[str, int]) -> list[bytes]:
    """The bytes of each token of a byte-level BPE vocabulary.

    By convention, a printable Latin-1 character represents its printable byte; characters from code point 256 represent the other bytes in
    order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    return [
        token.encode() if token in SPECIALS else bytes(byte_of[char] for char in token)
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
