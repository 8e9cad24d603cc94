"""How far a sampled token's logprob is from the logprob of the same token scored afterwards, on a GPU.

    python -m benchmarks.precision [--train-s N]

Needs a CUDA device, torch and transformers, which this project doesn't install. Trains a byte-level Qwen3 on Python's standard library,
samples token by token with a cache, and scores each sequence in one pass, alone. Both use the same weights, so what differs is rounding.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

CONTEXT, NEW = 512, 512
"""Tokens of a prompt and of an answer."""
CASES = (
    (torch.float32, 8, 1.0), (torch.float32, 64, 1.0), (torch.bfloat16, 8, 1.0), (torch.bfloat16, 64, 1.0), (torch.bfloat16, 64, 0.7),
)  # fmt: skip
"""Dtype, sequences sampled together, temperature."""


def main() -> None:
    """Prints one JSON object for each case."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--train-s", type=float, default=90.0, help="Seconds of training.")
    torch.manual_seed(0)
    data = standard_library()
    model = trained(data, parser.parse_args().train_s)
    for dtype, sequences, temperature in CASES:
        print(json.dumps(differences(model, data, dtype, sequences, temperature)), flush=True)


def standard_library() -> Any:
    """The sources of Python's standard library as one tensor of bytes, int64 [n]."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))[:3000]
    return torch.frombuffer(bytearray(b"".join(source.read_bytes() for source in sources)), dtype=torch.uint8).long()


def trained(data: Any, train_s: float) -> Any:
    """A model of 110 million parameters after `train_s` seconds of training."""
    config = Qwen3Config(
        vocab_size=256, hidden_size=768, intermediate_size=2304, num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=4,
        head_dim=64, max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95))
    ends = time.monotonic() + train_s
    while time.monotonic() < ends:
        batch = windows(data, 32, 1025)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(batch[:, :-1]).logits
        loss = cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def windows(data: Any, number: int, length: int) -> Any:
    """Random stretches of the data, int64 [number, length]."""
    starts = torch.randint(0, len(data) - length, (number,))
    return torch.stack([data[start : start + length] for start in starts]).cuda()


def differences(trained_model: Any, data: Any, dtype: Any, sequences: int, temperature: float) -> dict[str, Any]:
    """|sampled - scored| in nats over all sampled tokens of one case."""
    model = Qwen3ForCausalLM(trained_model.config).cuda()
    model.load_state_dict(trained_model.state_dict())
    model = model.to(dtype).eval()
    with torch.no_grad():
        tokens, sampled = sample(model, windows(data, sequences, CONTEXT), temperature)
        scored = torch.stack([score(model, row, temperature) for row in tokens])
    deltas = (scored - sampled).abs().flatten().double()
    median, p99, largest = torch.quantile(deltas, torch.tensor([0.5, 0.99, 1.0]).double().cuda()).tolist()
    case = {"dtype": str(dtype), "sequences": sequences, "temperature": temperature, "tokens": len(deltas)}
    return case | {"median": median, "p99": p99, "largest": largest}


def sample(model: Any, prompts: Any, temperature: float) -> tuple[Any, Any]:
    """Prompts with their answers, int64 [sequences, CONTEXT + NEW], and the answers' logprobs, float32 [sequences, NEW]."""
    tokens = unread = prompts
    cache, found = DynamicCache(), []
    for _ in range(NEW):
        choices = logprobs(model(unread, past_key_values=cache, use_cache=True).logits[:, -1], temperature)
        unread = torch.multinomial(choices.exp(), 1)
        found.append(choices.gather(1, unread))
        tokens = torch.cat([tokens, unread], 1)
    return tokens, torch.cat(found, 1)


def score(model: Any, row: Any, temperature: float) -> Any:
    """The logprobs of one sequence's answer, float32 [NEW]."""
    choices = logprobs(model(row[None]).logits[0, CONTEXT - 1 : -1], temperature)
    return choices.gather(1, row[CONTEXT:, None])[:, 0]


def logprobs(logits: Any, temperature: float) -> Any:
    return (logits.float() / temperature).log_softmax(-1)


if __name__ == "__main__":
    main()
