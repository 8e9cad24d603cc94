"""gpt-oss, which vLLM renders by a library instead of a chat template: no prompt is wrong, and nearly all continue what was sampled."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from examples.vllm_cpu.serve import PYTHON, ROOT, environment
from tests.proxy.engines.template_talks import Tally
from topics.environment import cache

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PACKAGE = "js-tiktoken@1.0.21"
"""It has the vocabulary `o200k_base`, which the library would download."""
VOCABULARY = "o200k_base.tiktoken"
DIGEST = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of the vocabulary, which the library demands as well."""


def make(folder: Path) -> None:
    """Write the vocabulary as lines of a token in base64 and its rank."""
    npm = Path(ROOT) / ".venv" / "bin" / "npm"
    subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, check=True)
    [packed] = folder.glob("*.tgz")
    with tarfile.open(packed) as archive:
        found = archive.extractfile("package/dist/ranks/o200k_base.js")
        assert found is not None
        source = found.read().decode()
    packed.unlink()
    [ranks] = re.findall(r'"bpe_ranks":\s*("(?:[^"\\]|\\.)*")', source)
    lines = []
    for line in filter(None, json.loads(ranks).split("\n")):
        _, first, *tokens = line.split(" ")
        lines += [(int(first) + at, token) for at, token in enumerate(tokens)]
    text = "".join(f"{token} {rank}\n" for rank, token in sorted(lines))
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST
    (folder / VOCABULARY).write_text(text)


def test_no_prompt_of_a_long_conversation_is_wrong(tell: Any) -> None:
    name = f"{VOCABULARY}-{DIGEST[:12]}"
    folder = cache.installed(name, make, whole=lambda each: (each / VOCABULARY).exists(), announce=print)
    ran = subprocess.run(
        [PYTHON, "-m", "tests.vllm.harmony", "4"],
        cwd=ROOT,
        env=environment() | {"TIKTOKEN_ENCODINGS_BASE": str(folder), "VLLM_SYSTEM_START_DATE": "2026-11-26"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = Tally(**json.loads(ran.stdout.splitlines()[-1]))
    tell(f"harmony: {found.prompts} prompts, {found.continued} continued ({found.rate:.0%}), {found.branched} branched")
    assert found.wrong == []
    assert found.rate > 0.9
