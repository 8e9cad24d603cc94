"""A mixture-of-experts model of random weights, 2 layers of 8 experts of which 2 are chosen, with the tiny model's tokenizer.

python -m tests.vllm.moe DIR TINY_MODEL_DIR, with the python of .venv-vllm
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

LAYERS, EXPERTS, TOP_K = 2, 8, 2
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def main(folder: Path, tiny: Path) -> None:
    import torch
    from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    base = AutoConfig.from_pretrained(tiny)
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=base.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        max_position_embeddings=base.max_position_embeddings,
        tie_word_embeddings=False,
        eos_token_id=base.eos_token_id,
        pad_token_id=base.pad_token_id,
        bos_token_id=None,
        dtype="float32",
        initializer_range=0.1,  # else the routers hardly tell tokens apart
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    for name in COPIED:
        shutil.copy(tiny / name, folder / name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
