"""Other weights for a served model: noise on each number of its safetensors file, the same for the same version; no torch.

file: 8 bytes length of the header, little-endian; the header, JSON: name -> {dtype, shape, data_offsets}; the numbers
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import aiohttp
import numpy as np

WEIGHTS = "model.safetensors"
NOISE = 0.06
"""So that versions give most tokens other logprobs, and still call tools."""
VAGUE_NOISE, VAGUE_HEAD = 3.0, 0.2
UPDATE_S = 60.0


class Served:
    """A model's folder, and the server that serves it."""

    def __init__(self, folder: Path, original: Path) -> None:
        """`folder` is made: a copy of `original`, which is left alone."""
        shutil.copytree(original, folder, symlinks=False)
        self.folder = folder
        self._original = (original / WEIGHTS).read_bytes()

    def write(self, version: int, *, is_vague: bool = False) -> None:
        """Puts the weights of a version in the file's place; version 0 is the original's.

        A vague one says anything, and hardly ever that it is done.
        """
        new = self.folder / f"{WEIGHTS}.new"
        noise, head = (VAGUE_NOISE, VAGUE_HEAD) if is_vague else (NOISE, 1.0)
        new.write_bytes(noisy(self._original, version, noise, head) if version else self._original)
        new.replace(self.folder / WEIGHTS)


def noisy(file: bytes, seed: int, noise: float, head: float) -> bytes:
    """Each number times a normal one around 1 with the deviation `noise`, those of the output head times `head`, too. float32 alone."""
    begin = 8 + int.from_bytes(file[:8], "little")
    tensors = json.loads(file[8:begin])
    tensors.pop("__metadata__", None)
    assert {tensor["dtype"] for tensor in tensors.values()} == {"F32"}, "the tiny model is float32"
    numbers = np.frombuffer(file, "<f4", offset=begin)
    factors = 1 + noise * np.random.default_rng(seed).standard_normal(len(numbers), dtype=np.float32)
    start, end = (offset // 4 for offset in tensors["lm_head.weight"]["data_offsets"])
    factors[start:end] *= head
    changed: bytes = (numbers * factors).astype("<f4").tobytes()
    return file[:begin] + changed


def asking(url: str) -> aiohttp.ClientSession:
    """For steps of updates: each on a connection of its own, since vLLM drops idle ones."""
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(force_close=True))


async def load(http: aiohttp.ClientSession, version: int) -> None:
    """What lies on the disk is served from now on, under this name."""
    await post(http, "/collective_rpc", {"method": "reload_weights"})
    await post(http, "/update_weight_version", {"new_version": str(version)})
    async with http.get("/weight_info") as response:
        assert await response.json() == {"weight_version": str(version)}


async def post(http: aiohttp.ClientSession, path: str, body: object = None) -> None:
    """One step of an update."""
    async with http.post(path, json=body, timeout=aiohttp.ClientTimeout(UPDATE_S)) as response:
        assert response.status == 200, await response.text()
