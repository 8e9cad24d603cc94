"""NeMo Gym's own servers in front of a running Polar, asked by the package's `ServerClient`.

    collect.py

In the current folder, config.json is NeMo Gym's config, and call.sh makes one call of a model. Runs with the packages of
requirements.txt, and writes answers.json: `[status, body]` of each request by its name. There are no arguments, since NeMo Gym would read
them as its own. The package takes many seconds to import, so this process imports it once and its servers are forks.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

from polar.nemo_gym.agent import PolarAgent
from polar.nemo_gym.resources import PolarResourcesServer

AWAY = "polar_agent_away"
"""An agent whose Kafka isn't there."""
SERVERS: dict[str, Any] = {"polar_agent": PolarAgent, AWAY: PolarAgent, "polar_resources": PolarResourcesServer}
READY_S = 120.0
STOP_S = 60.0
STARTED_S = 120.0
LINGERS_S = 20.0
ROW = {"responses_create_params": {"input": "say hello"}, "agent_ref": {"name": "polar_agent"}}


def serve(name: str, log: Path) -> None:
    """Run the package's web server as NeMo Gym's launcher does: its config and its name are in variables."""
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    SERVERS[name].run_webserver()


class Collector:
    """The servers and a client. Each answer is kept under a name."""

    def __init__(self, config: Mapping[str, Any], folder: Path, command: str) -> None:
        global_config = OmegaConf.create(dict(config))
        os.environ["NEMO_GYM_CONFIG_DICT"] = OmegaConf.to_yaml(global_config)  # of this process and its forks
        self._folder = folder
        self._command = command
        agent = config["polar_agent"]["responses_api_agents"]["polar_agent"]
        self._record = Path(agent["data"]) / "engine-record.jsonl"
        head = BaseServerConfig(host="127.0.0.1", port=config["head_server"]["port"])
        self._client = ServerClient(head_server_config=head, global_config_dict=global_config)
        self._forks = multiprocessing.get_context("fork")
        self.servers: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}

    def start(self, name: str) -> None:
        self.servers[name] = self._forks.Process(target=serve, args=(name, self._folder / f"{name}.log"))
        self.servers[name].start()

    def stop(self, name: str) -> None:
        server = self.servers.pop(name)
        server.terminate()
        server.join(STOP_S)
        self.answers[f"exit of {name}"] = server.exitcode
        server.kill()

    async def ready(self, name: str) -> None:
        async with asyncio.timeout(READY_S):
            while await asyncio.to_thread(self._client.poll_for_status, name) != "success":
                assert self.servers[name].is_alive(), (self._folder / f"{name}.log").read_text()
                await asyncio.sleep(0.2)

    async def ask(self, keep: str, server: str, path: str, body: Any) -> Any:
        answer = await self._client.post(server, path, json=body)
        found = json.loads(text) if (text := await answer.text()) else None
        self.answers[keep] = [answer.status, found]
        return found

    async def run(self, keep: str, index: int, task: Mapping[str, Any] | None = None) -> Any:
        row = {**ROW, "_ng_task_index": index, "_ng_rollout_index": 0}
        return await self.ask(keep, "polar_agent", "/run", row | ({} if task is None else {"polar_task": task}))

    def lingers(self) -> dict[str, Any]:
        """An agent that ends long after its call."""
        script = f"{self._command}\nsleep {LINGERS_S:g}"
        return {"agent": {"harness": "shell", "custom_shell": {"command": script}}}

    async def has_called(self, session: str) -> None:
        """Return once the engine has answered a call of the session."""
        async with asyncio.timeout(STARTED_S):
            while session not in self._record.read_text():
                await asyncio.sleep(0.1)

    async def before_the_restart(self) -> None:
        for name in SERVERS:
            await self.ready(name)
        first = await self.run("first", 0)
        await self.ask("verified", "polar_resources", "/verify", first)
        response = await self.ask("response", "polar_agent", "/v1/responses", ROW["responses_create_params"])
        await self.ask("its reward", "polar_resources", "/verify", {**ROW, "response": response})
        foreign = {**response, "metadata": {}}
        await self.ask("foreign", "polar_resources", "/verify", {**ROW, "response": foreign})
        unknown = {**response, "metadata": {"polar_session_id": "nobody.0"}}
        await self.ask("unknown", "polar_resources", "/verify", {**ROW, "response": unknown})
        await self.ask("seeded", "polar_resources", "/seed_session", {})
        await asyncio.gather(*(self.ask(f"away {number}", AWAY, "/run", ROW) for number in range(2)))
        await self.ask("no index", "polar_agent", "/run", {**ROW, "_ng_rollout_id": "x", "_ng_attempt_index": []})
        await self.run("refused", 1, {"agent": {"harness": "nobody"}})
        await self.run("another body", 0, {"timeout_seconds": 7.0})
        await self.run(
            "unscored",
            2,
            {"evaluator": {"strategy": "script", "config": {"command": "exit 1", "reads_files_of_the_run": False}}},
        )
        request = asyncio.create_task(self.run("unanswered", 3, self.lingers()))
        await self.has_called("-3-0.0")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await self.ask("others after a disconnect", "polar_agent", "/v1/responses", ROW["responses_create_params"])

    async def after_the_restart(self) -> None:
        await self.ready("polar_agent")
        await self.run("first again", 0)
        await self.run("disconnected", 3, self.lingers())
        await self.run("disconnected again", 3, self.lingers())


def main() -> None:
    folder = Path.cwd()
    collector = Collector(json.loads((folder / "config.json").read_text()), folder, (folder / "call.sh").read_text())
    try:
        for name in SERVERS:
            collector.start(name)
        with asyncio.Runner() as runner:
            runner.run(collector.before_the_restart())
            collector.stop("polar_agent")
            collector.start("polar_agent")
            runner.run(collector.after_the_restart())
        for name in SERVERS:
            collector.stop(name)
    finally:
        for server in collector.servers.values():
            server.kill()
        (folder / "answers.json").write_text(json.dumps(collector.answers))


if __name__ == "__main__":
    main()
