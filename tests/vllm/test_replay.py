"""What vLLM itself returns of routers and truncation, captured and read again: each row is its token's, each mask gives the very logprob.

Real: vLLM, its routers, its cache and its sampling, on a mixture-of-experts model of random weights (`interpreted.py` tells how on a CPU);
the engine's client, the builder and the trainer's reader. There is no Kafka: the records go from one to the other.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import reproduce_logprobs
from examples.vllm_cpu.serve import FLAGS, PYTHON, ROOT, Server, environment, serving
from polar.trainer.replay import UNROUTED, Replay
from proxy.engines.capabilities import detect, missing_features
from proxy.engines.vllm_tokens import VllmTokens
from tests.polar.trainer.test_replay import trajectory_of
from tests.proxy.engines.recorded import started
from tests.proxy.engines.test_vllm_replay import BOTH, Talk
from tests.vllm import interpreted, moe
from topics.types.completion import Sampling
from topics.types.replay import decode_experts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MAKE_S = 120.0
ANSWER_S = 60.0
CONTEXT = "1024"
SAMPLING = Sampling(temperature=0.8, top_p=0.9, top_k=20, max_tokens=12)
WORDS = ("Look into app.py.", "What is in it?", "Thank you, and now the tests.")
RETURNING = ("--enable-return-routed-experts", "--return-sampling-mask")
SMALL = ("--max-model-len", CONTEXT, "--max-num-seqs", "4", "--max-num-batched-tokens", CONTEXT)


@pytest.fixture(scope="module")
def moe_server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the random model with both flags."""
    model, site = tmp_path_factory.mktemp("moe"), tmp_path_factory.mktemp("site")
    command: list[str | Path] = [PYTHON, "-m", "tests.vllm.moe", model, model_dir]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=MAKE_S)
    flags = [*FLAGS, *RETURNING, *SMALL]
    with serving(model, log=model / "server.log", flags=flags, settings=interpreted.settings(site)) as server:
        yield server


@pytest.fixture
async def talk(moe_server: Server, tmp_path: Path) -> AsyncIterator[Talk]:
    """A conversation of three turns, captured."""
    engine = VllmTokens(moe_server.url, moe_server.model, logprobs_mode="processed", capture=BOTH)
    async with started(engine):
        talk = Talk(engine, tmp_path, SAMPLING)
        for words in WORDS:
            await talk.say(words)
        yield talk


async def test_the_server_is_found_to_return_both(moe_server: Server) -> None:
    found = await detect(moe_server.url, moe_server.model)
    assert found is not None
    assert (found.returns, found.logprobs_mode, found.tools) == (BOTH, "processed", True)
    assert not any(missing.is_fatal for missing in missing_features(found, "tokens", BOTH))


async def test_each_row_is_the_one_that_its_token_is_routed_by(talk: Talk, moe_server: Server, tell: Any) -> None:
    """The server reads the whole trace once more, from an empty cache, and routes each token as it did before."""
    assert [record.uncaptured for record in talk.records] == [{}] * len(WORDS)
    starts = [decode_experts(talk.blobs.get(str(record.routed_experts))).start for record in talk.records]
    assert starts == [0, *(len(tokens) - 1 for tokens in talk.tokens[:-1])], "only new rows are stored"
    trajectory = trajectory_of(talk)
    [trace] = trajectory.expanded()
    experts = Replay(talk.blobs).routed_experts(trajectory, 0)
    assert experts is not None
    assert experts.shape == (len(trace.token_ids), moe.LAYERS, moe.TOP_K)
    assert np.all(experts[-1] == UNROUTED)
    again = routed(moe_server, trace.token_ids.tolist())[: len(experts) - 1]
    equal, shifted = np.mean(experts[:-1] == again), np.mean(experts[:-2] == again[1:])
    tell(f"experts of {len(again)} tokens, read again: {equal:.1%} equal, {shifted:.1%} if shifted by one token")
    assert equal > 0.99
    assert shifted < 0.6


async def test_the_mask_gives_the_logprob_that_the_token_was_sampled_with(
    talk: Talk, moe_server: Server, tell: Any
) -> None:
    """top_p 0.9 and top_k 20 at temperature 0.8, from vLLM's plain distribution and the mask alone."""
    trajectory = trajectory_of(talk)
    [trace] = trajectory.expanded()
    mask = Replay(talk.blobs).sampling_mask(trajectory, 0)
    assert mask is not None
    tokens = trace.token_ids.tolist()
    plain = reproduce_logprobs.distributions(moe_server.url, moe_server.model, tokens)
    trained = np.flatnonzero(trace.loss_mask)
    differences = []
    for at in trained.tolist():
        logits = plain[at] / SAMPLING.temperature
        differences.append(logits[tokens[at]] - np.logaddexp.reduce(logits[mask.at(at)]) - trace.logprobs[at])
    largest = float(np.max(np.abs(differences)))
    unmasked = float(np.max(np.abs(plain[trained, trace.token_ids[trained]] - trace.logprobs[trained])))
    tell(f"logprobs of {len(trained)} tokens from their masks: max |Δ| {largest:.1e}, without masks {unmasked:.2f}")
    assert largest < 1e-4
    assert unmasked > 0.01


def routed(server: Server, token_ids: list[int]) -> Any:
    """The server's experts of these tokens, uncached: [tokens, layers, top_k]."""
    params = {"max_tokens": 1, "temperature": 1.0, "top_k": 1}
    body = {"token_ids": token_ids, "sampling_params": params, "cache_salt": "once more"}
    request = urllib.request.Request(
        f"{server.url}/inference/v1/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        found = json.load(answer)["choices"][0]["routed_experts"]
    return np.load(io.BytesIO(base64.b64decode(found)))
