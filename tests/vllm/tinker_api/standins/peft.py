"""Stands in for PEFT in SkyRL's server, whose JAX backend writes the JSON file beside a LoRA with it; PEFT itself imports PyTorch."""

from __future__ import annotations

import json
from pathlib import Path


class LoraConfig:
    """Writes the fields that vLLM reads, as PEFT does."""

    def __init__(self, *, base_model_name_or_path: str, r: int, lora_alpha: float) -> None:
        self._fields = {
            "peft_type": "LORA",
            "base_model_name_or_path": base_model_name_or_path,
            "r": r,
            "lora_alpha": lora_alpha,
            "bias": "none",
            "target_modules": None,
        }

    def save_pretrained(self, folder: Path) -> None:
        (folder / "adapter_config.json").write_text(json.dumps(self._fields))
