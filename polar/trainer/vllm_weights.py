"""New weights for vLLM servers that run: a file in the folder that they serve, then their development routes (docs/fleet.md).

The fleet must be paused meanwhile. The servers need `VLLM_SERVER_DEV_MODE=1` and read the folder from a disk that they share with the
trainer. A server that starts again reads the newest weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from topics.environment import http_json
from topics.types.errors import InputError, NotReadyError

WEIGHTS = "model.safetensors"
ANSWER_S = 300.0
"""Limit for one answer: a reload reads all weights from the disk."""
HEADER_LENGTH = 8
"""Bytes before a safetensors file's header; they hold its length, little-endian."""


class PushError(RuntimeError):
    """A server didn't accept the weights; the message has its answer."""


def served_folder(folder: Path, urls: Sequence[str]) -> Callable[[Mapping[str, Any], int], None]:
    """A function that gives tensors, by name, and their version to the servers at `urls` (without `/v1`), which serve `folder`.

    It replaces the folder's `model.safetensors` and reloads every server. It raises InputError if tensors are missing or new, compared
    with that file, PushError as `reload` does, and NotReadyError without the package safetensors. Raises InputError for a folder without
    that file.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise InputError("folder", str(folder), f"has no {WEIGHTS}: serve a model of one file")

    def push(tensors: Mapping[str, Any], version: int) -> None:
        write(file, tensors)
        for url in urls:
            reload(url, version)

    return push


def write(file: Path, tensors: Mapping[str, Any]) -> None:
    """Replace a safetensors file as a whole, by CPU tensors of the same names. Raises InputError, NotReadyError."""
    served = tensor_names(file)
    if served != tensors.keys():
        differing = sorted(served ^ tensors.keys())
        # vLLM's CPU build keeps the old head if a model with tied embeddings is reloaded.
        reason = "the server's file has other tensors than the trainer; a model with tied embeddings needs a head of its own in both"
        raise InputError("tensors", differing[:3], reason)
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise NotReadyError("new weights are written by the package safetensors: pip install safetensors") from None
    temporary = file.with_suffix(".tmp")
    save_file(dict(tensors), temporary, metadata={"format": "pt"})
    temporary.replace(file)


def tensor_names(file: Path) -> set[str]:
    """The names of the tensors in a safetensors file."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(HEADER_LENGTH), "little")
        header = json.loads(opened.read(length))
    return set(header) - {"__metadata__"}


def reload(url: str, version: int) -> None:
    """Make a server read its model's file again, forget what the old weights computed, and name the version. Raises PushError."""
    _post(url, "/pause?" + urlencode({"mode": "wait"}))
    try:
        _post(url, "/collective_rpc", {"method": "reload_weights"})
        _post(url, "/reset_prefix_cache")
        _post(url, "/update_weight_version", {"new_version": str(version)})
    finally:
        _post(url, "/resume")


def _post(url: str, route: str, body: Mapping[str, Any] | None = None) -> None:
    """Each request has a connection of its own: vLLM closes connections that are idle for 5 s."""
    try:
        answer = http_json.send(f"{url.rstrip('/')}{route}", body or {}, timeout_s=ANSWER_S, through_proxy=True)
    except http_json.NoAnswerError as error:
        raise PushError(f"{url}{route} doesn't answer: {error}") from None
    if answer.status != 200:
        raise PushError(f"{url}{route} answers {answer.status}: {answer.body.decode(errors='replace')[:500]}")
