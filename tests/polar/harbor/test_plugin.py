"""The plug-in on a control API that the test plays. `Job` and `trial` stand for Harbor's, which needs another Python."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

import polar.harbor
from polar.harbor import Plugin
from polar.harbor.captured import Captured, environments
from tests.polar.control_api import OPENED
from tests.serving import Answer, Requests, serving_by_path
from topics.types.errors import InputError, NotReadyError

Hook = Callable[[Any], Awaitable[None]]


class Job:
    """A job of Harbor's with one agent."""

    id = uuid4()

    def __init__(self, agent: str) -> None:
        agents = [SimpleNamespace(name=agent, import_path=None)]
        self.config = SimpleNamespace(agents=agents, n_attempts=2, job_name="a job")
        self.opens: Hook
        self.closes: Hook

    def on_environment_started(self, hook: Hook) -> None:
        self.opens = hook

    def on_trial_ended(self, hook: Hook) -> None:
        self.closes = hook


def trial(rewards: dict[str, float] | None) -> Any:
    """A trial of Harbor's as its hooks see it; `rewards` are the verifier's."""
    agent = SimpleNamespace(name="oracle", concurrency_key="k")
    config = SimpleNamespace(agent=agent, task=SimpleNamespace(get_task_id=lambda: "path='t'"))
    result = SimpleNamespace(verifier_result=rewards and SimpleNamespace(rewards=rewards))
    return SimpleNamespace(config=config, result=result, trial_id=uuid4(), trial_name="t__1", task_name="t")


class Api:
    """Answers of a control API: to opens, and to closes one after another."""

    def __init__(self) -> None:
        self.opens: list[Answer] = []
        self.closes: list[Answer] = []
        self.requests = Requests()

    def answer(self, path: str, _body: Any) -> Answer:
        return (self.closes if path.endswith("/close") else self.opens).pop(0)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    played = Api()
    (tmp_path / "token").write_text("secret\n")
    with serving_by_path(played.answer) as (url, played.requests):
        lines = (f"POLAR_CONTROL_URL={url}", f"POLAR_CONTROL_TOKEN_FILE={tmp_path / 'token'}")
        (tmp_path / "polar.env").write_text("\n".join(lines))
        yield played


async def started(folder: Path, **options: Any) -> Job:
    job = Job("oracle")
    await Plugin(str(folder), **options).on_job_start(job)
    return job


def refusal(code: str) -> Answer:
    return 409, {"error": {"code": code, "field": "task_id", "message": code}}


async def test_a_trial_s_session_has_its_names_and_its_reward(api: Api, tmp_path: Path) -> None:
    api.opens, api.closes = [(201, OPENED)], [(202, {"session_id": "t.0"})]
    job, one = await started(tmp_path, ttl_s=60), trial({"reward": 0.5})
    await job.opens(one)
    assert environments[one.trial_id] == OPENED["env"]
    await job.closes(one)
    assert one.trial_id not in environments
    (_, _, opened), (path, _, closed) = api.requests
    task_id = opened.pop("task_id")
    assert task_id.startswith("t-")
    assert opened == {"num_samples": 2, "ttl_s": 60.0, "mode": "train", "run": "a-job", "label": "t__1"}
    assert (path, closed) == ("/v1/sessions/t.0/close", {"reward": 0.5, "force": True})


async def test_trials_get_the_proxy_s_address_that_the_job_names(api: Api, tmp_path: Path) -> None:
    api.opens = [(201, OPENED)]
    job, one = await started(tmp_path, proxy_url="http://proxy:8080/"), trial(None)
    await job.opens(one)
    variables = environments.pop(one.trial_id)
    assert variables["OPENAI_BASE_URL"] == "http://proxy:8080/v1"
    assert variables["ANTHROPIC_BASE_URL"] == "http://proxy:8080"
    assert variables["ANTHROPIC_API_KEY"] == "sk"


async def test_a_trial_without_a_free_sample_is_a_task_of_its_own(api: Api, tmp_path: Path) -> None:
    api.opens = [refusal("taken"), (201, OPENED)]
    job, one = await started(tmp_path), trial(None)
    await job.opens(one)
    del environments[one.trial_id]
    (_, _, first), (_, _, second) = api.requests
    assert second == first | {"task_id": f"{first['task_id']}-{one.trial_id.hex[:12]}", "num_samples": 1}
    api.opens = [refusal("cancelled")]
    with pytest.raises(InputError, match="cancelled"):
        await job.opens(trial(None))


async def test_a_close_waits_for_the_proxy_and_never_fails_the_job(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unanswered = 503, {"error": {"code": "unanswered", "message": "no coordinator answers"}}
    api.opens = [(201, OPENED), (201, OPENED)]
    api.closes = [unanswered, (202, {"session_id": "t.0"}), refusal("ended")]
    job, one, late = await started(tmp_path), trial({"reward": 1}), trial({"reward": 1})
    with caplog.at_level(logging.WARNING):
        await job.opens(one)
        await job.closes(one)
        assert caplog.messages == []
        await job.opens(late)
        await job.closes(late)
    assert caplog.messages == ["the reward 1.0 of t.0 doesn't count: task_id: ended"]
    assert api.closes == []


async def test_a_job_s_end_closes_what_a_trial_left_open(api: Api, tmp_path: Path) -> None:
    api.opens, api.closes = [(201, OPENED)], [(202, {"session_id": "t.0"})]
    plugin, job, one = Plugin(str(tmp_path)), Job("oracle"), trial({"reward": 1.0})
    await plugin.on_job_start(job)
    await job.opens(one)
    await plugin.on_job_end(None)
    path, _, closed = api.requests[-1]
    assert (path, closed, one.trial_id in environments) == ("/v1/sessions/t.0/close", {}, False)


async def test_a_trial_that_no_session_was_opened_for_is_left_alone(api: Api, tmp_path: Path) -> None:
    await (await started(tmp_path)).closes(trial({"reward": 1}))
    assert api.requests == []


async def test_rewards_of_which_none_is_chosen_are_none(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.opens, api.closes = [(201, OPENED)], [(202, {"session_id": "t.0"})]
    job, one = await started(tmp_path), trial({"style": 1, "tests": 0})
    await job.opens(one)
    await job.closes(one)
    assert api.requests[1][2] == {"force": True}
    assert caplog.messages == ["t__1: none of the rewards {'style': 1, 'tests': 0} is a number named 'reward'"]


@pytest.mark.parametrize("url", ["proxy:8080", "ftp://proxy", "http://proxy/v1", "http://"])
def test_an_address_with_a_path_or_without_a_host_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="proxy_url: must be the proxy's URL without a path"):
        Plugin(str(tmp_path), proxy_url=url)


async def test_an_agent_without_a_session_says_which_option_is_missing() -> None:
    agent = Captured()
    agent.context_id = uuid4()
    with pytest.raises(NotReadyError, match="give `harbor run` the option"):
        await agent.setup(None)


def test_an_agent_asked_for_without_harbor_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install 'harbor"):
        _ = polar.harbor.codex
    assert not hasattr(polar.harbor, "__wrapped__")
