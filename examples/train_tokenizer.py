"""Trains the small tokenizer that the scripted engine ships, on the Python standard library's own files.

    python examples/train_tokenizer.py polar/scripted/tokenizer.json

A byte-level BPE: every text encodes and decodes back to itself, byte for byte. Which files are read is drawn by
`SEED` from the standard library's modules in name order; the shipped file was trained under Python 3.11, and another
version of the library gives another vocabulary. The special tokens take the first ids, in the order of
`polar.scripted.tokenizer.SPECIALS`.
"""

import random
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from polar.scripted.tokenizer import SPECIALS

SEED = 20261121
VOCABULARY = 4096
FILES = 400


def corpus(seed: int, files: int) -> list[str]:
    """The text of `files` modules of the standard library, without its tests."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(
        path
        for path in library.rglob("*.py")
        if not {"site-packages", "test", "tests", "idlelib"} & set(path.relative_to(library).parts)
    )
    chosen = random.Random(seed).sample(modules, min(files, len(modules)))
    return [path.read_text("utf-8", errors="replace") for path in chosen]


def train(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` entries, with no normaliser: encoding loses nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/train_tokenizer.py OUTPUT.json")
    train(corpus(SEED, FILES)).save(sys.argv[1], pretty=False)
