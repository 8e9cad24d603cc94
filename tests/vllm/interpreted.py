"""vLLM's Model Runner V2 on a CPU, which alone returns routed experts and sampling masks.

It needs Triton, and the CPU build accepts only a Triton with a CPU backend, which no package index has ("Model Runner V2 requires Triton").
Triton's own interpreter runs the kernels on a CPU as well, a tenth of a second a token for a tiny model. So the server gets a backend that
says that it is there, and the interpreter. One kernel, of top_k and top_p, is beyond the interpreter: for it vLLM uses its own PyTorch
code, as it does without Triton. All else is vLLM as it is: routers, capture, cache blocks, sampling, masks, wire.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

from examples.vllm_cpu.serve import ROOT

PLUGIN = "polar_interpreted"


def settings(folder: Path) -> dict[str, str]:
    """The server's environment. The empty `folder` gets what Python and vLLM import at start."""
    (folder / "sitecustomize.py").write_text(f"from {__name__} import register\n\nregister()\n")
    info = folder / f"{PLUGIN}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PLUGIN} = {__name__}:without_topk_kernel\n")
    return {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }


def register() -> None:
    """Adds a CPU backend to Triton, in each of the server's processes before vLLM looks for one."""
    from triton.backends import backends

    backends["cpu"] = types.SimpleNamespace(driver=_Driver, compiler=None)


def without_topk_kernel() -> None:
    """vLLM's plug-in: truncation without Triton."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False


class _Driver:
    """What vLLM and Triton ask a driver for before the interpreter takes over."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: Any) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 0)
