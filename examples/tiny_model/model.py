"""The model: a Qwen3 of 1.2 million float32 weights, and its folder in the form that `transformers` and vLLM read.

Invariant: the folder holds an output head of its own (`tie_word_embeddings` false), also where it equals the embeddings: with tied ones
vLLM's CPU build goes on with the old head after new weights were loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from examples.tiny_model.tokenizer import CONTEXT, VOCABULARY

WEIGHTS = "model.safetensors"


def config(tokenizer: Any, *, is_tied: bool = False) -> Qwen3Config:
    """4 layers of 4 heads (2 for keys and values) of 32."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=is_tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        use_cache=False,
        dtype="float32",
    )


def beginner(tokenizer: Any, seed: int) -> Qwen3ForCausalLM:
    """Random weights, head and embeddings shared for as long as it is fine-tuned."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config(tokenizer, is_tied=True))


def load(folder: Path) -> Qwen3ForCausalLM:
    """The model of a folder, to be trained."""
    logging.disable_progress_bar()
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)


def save_weights(model: Qwen3ForCausalLM, file: Path) -> None:
    """All weights, the head as a tensor of its own; written beside the file and renamed, so that a server never reads half of them."""
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    temporary = file.with_suffix(".tmp")
    save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.replace(file)


def save(model: Qwen3ForCausalLM, tokenizer: Any, folder: Path) -> None:
    """Everything that a server needs: weights, configuration, tokenizer with its template, and plain sampling as the default."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    config(tokenizer).save_pretrained(folder)
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**own, "architectures": ["Qwen3ForCausalLM"]}, indent=2) + "\n")
    sampling = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "temperature": 1.0}
    (folder / "generation_config.json").write_text(json.dumps(sampling, indent=2) + "\n")
    save_weights(model, folder / WEIGHTS)
