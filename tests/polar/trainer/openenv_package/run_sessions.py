"""Uses a `PolarSessionFactory` as TRL's worker does: pickled into a spawned process, by several threads.

    run_sessions.py DATA

Runs with the packages of requirements.txt. Prints as JSON what each session came to, by its instruction.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import SimpleQueue
from typing import Any

from openenv.core.harness import TrainableSession
from openenv.core.harness.capture.upstream import training_sampling

from polar.trainer.openenv import PolarSessionFactory

LOOK_S = 0.5


def task(prompt: str) -> Mapping[str, Any]:
    agent = {"harness": "shell", "custom_shell": {"command": "true"}}
    sampling = {"temperature": 0.5} if prompt == "colder" else {}
    return {"instruction": prompt, "agent": agent, "sampling": sampling}


def come_to(factory: PolarSessionFactory, prompt: str) -> list[Any]:
    """As TRL's `_run_session`: what the wait, the trace and the verification returned or raised."""
    try:
        session = factory.create(prompt, seed=3, episode_id=prompt)
    except ValueError as error:
        return [str(error)]
    assert isinstance(session, TrainableSession)
    assert session.initial_messages() == [{"role": "user", "content": prompt}]
    closing = threading.Timer(LOOK_S, session.close)
    if prompt == "closed":
        closing.start()
    try:
        try:
            ended: object = session.wait_for_completion(LOOK_S if prompt == "slow" else None)
        except (TimeoutError, RuntimeError) as error:
            ended = str(error)
        if prompt == "closed":
            closing.join()
            return [ended]
        trained = [turn.completion_token_ids for turn in session.fetch_training_trace().turns]
        verified = session.verify([])
        assert verified.done
        return [ended, trained, verified.env_reward, verified.artifacts["status"]]
    finally:
        session.close()


def work(factory: PolarSessionFactory, prompts: list[str], results: SimpleQueue[str]) -> None:
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = dict(zip(prompts, pool.map(lambda prompt: come_to(factory, prompt), prompts), strict=True))
    found["again"] = come_to(factory, prompts[0])
    factory.close()
    results.put(json.dumps(found))


def main() -> None:
    factory = PolarSessionFactory(task, run="r1", data=sys.argv[1], sampling=training_sampling({"temperature": 1.0}))
    context = multiprocessing.get_context("spawn")
    results: SimpleQueue[str] = context.SimpleQueue()
    prompts = ["rewarded", "unscored", "late", "otherwise", "slow", "closed", "refused", "colder"]
    process = context.Process(target=work, args=(factory, prompts, results))
    process.start()
    process.join()
    assert process.exitcode == 0
    print(results.get())


if __name__ == "__main__":
    main()
