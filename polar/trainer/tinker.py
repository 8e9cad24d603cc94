"""Trains a LoRA on a server of Tinker's API with groups from Kafka, and gives it to vLLM servers while the fleet is paused.

    service = tinker.ServiceClient(base_url=…, api_key=…)  # pip install tinker
    trainer = await Trainer.create(service, base_model, rank=32)
    async with TrajectoryConsumer() as consumer, Fleet() as fleet:
        async for group in consumer.groups(expect(temperature=1.0), drop_zero_advantage):
            step = await trainer.step(datums([group]), learning_rate=1e-5)
            await trainer.push(fleet, ["http://127.0.0.1:8000"], "policy", folder)
            save(await trainer.state_dict(consumer))

The server holds the weights and the optimiser; `state_dict` names a checkpoint there, with the position in Kafka that belongs to it. One
task of one event loop uses a trainer.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from polar.fleet import Fleet
from polar.trainer.consumer import TrajectoryConsumer
from polar.trainer.exporters.tinker import Datum
from topics.environment import http_json
from topics.fleet import Publication
from topics.types.errors import InputError, NotReadyError

ANSWER_S = 600.0
"""Limit of a download, and of a server that loads an adapter: large ones take minutes."""
LossFn = Literal["importance_sampling", "ppo", "cispo"]


@dataclass(frozen=True)
class Step:
    """One step of the optimiser."""

    datums: list[Datum]
    logprobs: list[NDArray[np.float32]]
    """float32 [n] for each datum: of its targets, by the weights before the step."""
    metrics: dict[str, float]
    """As the server names them, of both requests."""

    @property
    def ratios(self) -> NDArray[np.float32]:
        """float32 [trained tokens]: probability in the trainer over probability at sampling; 1 for the same weights."""
        pairs = zip(self.datums, self.logprobs, strict=True)
        found: NDArray[np.float32] = np.exp(
            np.concatenate([(new - one.loss_fn_inputs["logprobs"])[one.trained] for one, new in pairs])
        )
        return found

    @property
    def loss(self) -> float:
        """-ratio * advantage, summed over the trained tokens: what `importance_sampling` minimises."""
        advantages = [one.loss_fn_inputs["advantages"][one.trained] for one in self.datums]
        return -float(np.dot(self.ratios, np.concatenate(advantages)))


class Trainer:
    """One LoRA and its optimiser at a server."""

    def __init__(self, service: Any, client: Any, *, version: int, with_weights: bool) -> None:
        """Use `create` or `resume`. `service`, `client`: `tinker.ServiceClient`, `tinker.TrainingClient`."""
        self.version = version
        """Number of steps; `push` publishes it as the policy's version."""
        self._service = service
        self._client = client
        self._with_weights = with_weights
        self._saved: str | None = None
        """Path of the checkpoint of this version."""
        self._line = uuid.uuid4().hex[:8]
        """Part of its adapters' names: a trainer that was killed may have pushed other weights under the versions that follow."""
        self._needs_rollback = False
        """Whether the fleet may have versions that follow no checkpoint."""
        self._types: Any = import_module("tinker")

    @classmethod
    async def create(cls, service: Any, base_model: str, *, rank: int, with_weights: bool = False, **more: Any) -> Self:
        """A new LoRA. `more`: as for `tinker.ServiceClient.create_lora_training_client`.

        `with_weights`: add each datum's mask as `weights`, for servers that divide by their sum, as SkyRL's does. Tinker's own
        losses sum over tokens, and `importance_sampling` takes no weights.
        """
        client = await service.create_lora_training_client_async(base_model, rank, **more)
        return cls(service, client, version=0, with_weights=with_weights)

    @classmethod
    async def resume(cls, service: Any, state: Mapping[str, Any], *, with_weights: bool = False) -> Self:
        """Go on from a `state_dict`, with its optimiser. Load `state["consumer"]` into the consumer."""
        path, version = state["weights"], state["version"]
        client = await service.create_training_client_from_state_with_optimizer_async(path)
        made = cls(service, client, version=version, with_weights=with_weights)
        made._saved = path
        made._needs_rollback = True
        return made

    async def step(
        self,
        datums: Sequence[Datum],
        *,
        loss_fn: LossFn = "importance_sampling",
        loss_fn_config: dict[str, float] | None = None,
        **adam: float,
    ) -> Step:
        """A forward and a backward pass over these datums, and one step of the optimiser.

        `adam`: fields of `tinker.AdamParams`, as `learning_rate`. Raises InputError without datums, and what `tinker` raises.
        """
        if not datums:
            raise InputError("datums", [], "nothing to train: pass groups(at_least=1) to leave such groups out")
        # Both are sent before the first is awaited, so that the server does them in one go.
        passed = await self._client.forward_backward_async([*map(self._datum, datums)], loss_fn, loss_fn_config)
        stepped = await self._client.optim_step_async(self._types.AdamParams(**adam))
        outputs, optimiser = await passed, await stepped
        self.version += 1
        self._saved = None
        logprobs = [one["logprobs"].to_numpy() for one in outputs.loss_fn_outputs]
        return Step([*datums], logprobs, {**outputs.metrics, **(optimiser.metrics or {})})

    def _datum(self, one: Datum) -> Any:
        inputs = {**one.loss_fn_inputs, **({"weights": one.mask} if self._with_weights else {})}
        return self._types.Datum(model_input=self._types.ModelInput.from_ints(one.tokens), loss_fn_inputs=inputs)

    async def logprobs(self, datums: Sequence[Datum]) -> list[NDArray[np.float32]]:
        """float32 [n] for each datum: of its targets, by the weights now. Nothing is trained."""
        passed = await self._client.forward_async([*map(self._datum, datums)], "importance_sampling")
        return [one["logprobs"].to_numpy() for one in (await passed).loss_fn_outputs]

    async def state_dict(self, consumer: TrajectoryConsumer) -> dict[str, Any]:
        """Save weights and optimiser at the server; where they are, with the consumer's position, as JSON values.

        Call it between two items of the consumer, after the step on the last one. The server keeps all checkpoints.
        """
        position = consumer.state_dict()
        if self._saved is None:
            saved = await self._client.save_state_async(f"step-{self.version}")
            self._saved = (await saved).path
        return {"weights": self._saved, "version": self.version, "consumer": position}

    async def push(self, fleet: Fleet, vllm: Sequence[str], name: str, folder: Path) -> Publication:
        """Pause the fleet, let these vLLM servers serve this LoRA as the model `name`, and publish its version.

        `vllm`: base URLs without /v1. `folder`: one that the servers can read under the same path; it gets a folder per version.
        Start them with `--enable-lora --max-lora-rank RANK` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. Raises NotReadyError where a
        server doesn't take the LoRA, and what `Fleet.paused` raises; the version then isn't published.

        The first push after `resume` takes over a pause that the killed trainer may have left, and may publish a lower version than its
        last one.
        """
        adapter = await self.save_adapter(folder / f"step-{self.version}-{self._line}")
        async with fleet.paused(force=self._needs_rollback) as pause:
            await load_adapter(vllm, name, adapter)
            publication = await pause.publish(self.version, force=self._needs_rollback)
        self._needs_rollback = False
        return publication

    async def save_adapter(self, folder: Path) -> Path:
        """Write the LoRA in PEFT's format into this folder, which is made; if it is there already, it is left as it is."""
        if folder.exists():
            return folder
        saved = await self._client.save_weights_for_sampler_async(f"{folder.name}")
        run, _, checkpoint = (await saved).path.removeprefix("tinker://").partition("/")
        archive = await self._service.create_rest_client().get_checkpoint_archive_url_async(run, checkpoint)
        await asyncio.to_thread(_download, archive.url, folder)
        return folder


async def load_adapter(vllm: Sequence[str], name: str, adapter: Path) -> None:
    """Let vLLM servers serve this LoRA as the model `name`, in place of an older one. Raises NotReadyError.

    Outside of a pause, calls that run change their weights in mid-answer: use it before the fleet starts.
    """
    for url in vllm:
        body = {"lora_name": name, "lora_path": str(adapter.absolute()), "load_inplace": True}
        try:
            answer = await asyncio.to_thread(
                http_json.send, f"{url}/v1/load_lora_adapter", body, timeout_s=ANSWER_S, through_proxy=True
            )
        except http_json.NoAnswerError as error:
            raise NotReadyError(f"{url} doesn't answer: {error}") from None
        if answer.status != 200:
            error_text = answer.body.decode(errors="replace")[:500]
            raise NotReadyError(
                f"{url} doesn't load {adapter}: {answer.status} {error_text}; "
                "start it with --enable-lora, a --max-lora-rank that fits, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
            )


def _download(url: str, folder: Path) -> None:
    """Unpack an archive into a folder that is there whole or not at all. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=ANSWER_S) as response:  # noqa: S310 - the server named it
        archive = io.BytesIO(response.read())
    unpacked = Path(tempfile.mkdtemp(dir=folder.parent))
    with tarfile.open(fileobj=archive) as files:
        files.extractall(unpacked, filter="data")
    unpacked.chmod(0o755)
    unpacked.rename(folder)
