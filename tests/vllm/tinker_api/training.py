"""A trainer on Tinker's API: a step on the first group, the new LoRA for vLLM in a pause, and what the second group says of it.

    training.py TINKER_URL VLLM_URL MODEL FOLDER

Runs in the environment of `packages.py`. It writes JSON objects, a line each, and reads a line after each:
`loaded` once vLLM serves the LoRA, and reads the data folder of a `polar up` that samples from it; the step on the first group, and reads a
line once the second is sampled; what the second group says.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tinker  # type: ignore[import-not-found] # it is in the environment of packages.py
from numpy.typing import NDArray

import polar
from polar.trainer import TrajectoryConsumer, expect, grpo
from polar.trainer.exporters.tinker import Datum, datums
from polar.trainer.tinker import Trainer, load_adapter

POLICY = "policy"
RANK = 8
RATE = 1e-2
WAIT_S = 240.0
PLAIN = expect(temperature=1.0)


def tell(**report: Any) -> None:
    print(json.dumps(report), flush=True)


def largest(made: list[Datum], logprobs: list[NDArray[np.float32]]) -> float:
    """Difference of a trained token's logprob from the one at sampling."""
    pairs = zip(made, logprobs, strict=True)
    return max(float(np.abs(new - one.loss_fn_inputs["logprobs"])[one.trained].max()) for one, new in pairs)


async def main(tinker_url: str, vllm_url: str, model: str, folder: Path) -> None:
    service = tinker.ServiceClient(base_url=tinker_url, api_key="tml-none")
    trainer = await Trainer.create(service, model, rank=RANK, with_weights=True)
    await load_adapter([vllm_url], POLICY, await trainer.save_adapter(folder / "step-0"))
    tell(loaded=POLICY)
    settings = polar.load_settings(Path((await asyncio.to_thread(sys.stdin.readline)).strip()))
    consumer = TrajectoryConsumer(settings=settings, timeout_s=WAIT_S)
    async with consumer, polar.Fleet(settings) as fleet:
        groups = aiter(consumer.groups(PLAIN))
        first = datums([await anext(groups)])
        step = await trainer.step(first, learning_rate=RATE)
        after = await trainer.logprobs(first)
        publication = await trainer.push(fleet, [vllm_url], POLICY, folder)
        state = json.loads(json.dumps(await trainer.state_dict(consumer)))
        tell(
            tokens=len(step.ratios),
            datums=len(first),
            ratios=[float(step.ratios.min()), float(step.ratios.max())],
            loss=step.loss,
            metrics=step.metrics,
            changed=largest(first, after),
            version=publication.version,
            sessions=sorted({one.session_id for one in first}),
        )
        await asyncio.to_thread(sys.stdin.readline)
        group = await anext(groups)
        second = datums([group])
        now = await trainer.logprobs(second)
    resumed = await Trainer.resume(service, state, with_weights=True)
    again = TrajectoryConsumer(settings=settings, timeout_s=WAIT_S)
    again.load_state_dict(state["consumer"])
    async with again:
        seen = await anext(aiter(again.groups(PLAIN)))
    tell(
        largest=largest(second, now),
        versions=sorted({int(one) for row in grpo(group) for one in row.policy_versions[row.loss_mask > 0]}),
        resumed_version=resumed.version,
        resumed_differs=max(
            float(np.abs(one - other).max()) for one, other in zip(now, await resumed.logprobs(second), strict=True)
        ),
        resumed_sessions=sorted(one.session_id for one in seen.trajectories),
        sessions=sorted(one.session_id for one in group.trajectories),
    )


if __name__ == "__main__":
    url, vllm, base_model, where = sys.argv[1:]
    asyncio.run(main(url, vllm, base_model, Path(where)))
