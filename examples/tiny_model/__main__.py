"""Makes the model: python -m examples.tiny_model DIR [--seed N] [--quick]"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from examples.tiny_model import model, sft, tokenizer

SURE = 0.98
"""What `sft.copying` must reach before reinforcement learning."""


def main() -> int:
    """0; 1 where the model copies too badly to begin with (never with --quick): nothing is written then."""
    options = arguments()
    torch.set_num_threads(options.threads)
    started = time.monotonic()

    def report(text: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {text}", flush=True)

    own = tokenizer.make(options.seed)
    made = model.beginner(own, options.seed)
    report(f"{sum(weight.numel() for weight in made.parameters()):,} weights, {len(own)} tokens")
    sft.fine_tune(made, own, options.seed, sft.QUICK if options.quick else sft.FULL, report)
    copied = sft.copying(made, own, options.seed + 1)
    report(
        f"copies the key to search for with p {copied.searched_key:.3f}, the old value with p {copied.old_value:.3f}"
    )
    if min(copied.searched_key, copied.old_value) < SURE and not options.quick:
        print(f"tiny_model: below {SURE}; reinforcement learning won't lift that: try another --seed", file=sys.stderr)
        return 1
    model.save(made, own, options.folder)
    report(f"written to {options.folder}")
    return 0


def arguments() -> argparse.Namespace:
    """What is said on the command line."""
    parser = argparse.ArgumentParser(prog="examples.tiny_model", description="Makes a small model that calls tools.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write it, as Hugging Face's folders are")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of weights and data (default 1)")
    parser.add_argument("--quick", action="store_true", help="for tests: right in form, less so in what it does")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of the processor (default 2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
