"""What each trainer gets of a group, read back as rows: from the SDK's rows and batches, and from each exporter's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from polar.trainer.exporters import nemo, openenv, prime_rl, skyrl, slime, trl, verl
from polar.trainer.exporters.segments import rewarded, segments
from polar.trainer.groups import Group
from polar.trainer.packing import pack
from polar.trainer.rows import UNKNOWN, Versions, grpo
from tests.faithfulness.rows import Row
from topics.types.completion import Medium

ROOM = 20_000
"""Tokens of a batch: more than any row has."""
NO_VERSION = -7
"""What verl is told for an unknown version."""


def _all_known(reported: set[int], versions: set[int | None]) -> bool:
    return reported == versions - {None}


def _range(oldest: int, newest: int, versions: set[int | None]) -> bool:
    known = [NO_VERSION] if None in versions else [version for version in versions if version is not None]
    return (oldest, newest) == (min(known), max(known))


def _oldest(reported: int, versions: set[int | None]) -> bool:
    return reported == min(UNKNOWN if version is None else version for version in versions)


def _known(column: Versions) -> list[int | None]:
    return [None if one == UNKNOWN else one for one in column.tolist()]


def _places(media: Sequence[Medium]) -> list[tuple[str, int]]:
    return [(medium.digest, medium.position or 0) for medium in media]


def sdk_rows(group: Group) -> Iterator[Row]:
    for row in grpo(group):
        yield Row(
            "sdk",
            row.token_ids.tolist(),
            row.loss_mask.tolist(),
            row.logprobs.tolist(),
            _known(row.policy_versions),
            _known(row.publications),
            _places(row.media),
        )


def batches(group: Group) -> Iterator[Row]:
    for batch in pack(grpo(group), ROOM):
        ids, mask, logprobs = batch.token_ids.tolist(), batch.loss_mask.tolist(), batch.logprobs.tolist()
        versions, publications = _known(batch.policy_versions), _known(batch.publications)
        for (start, end), media in zip(pairwise(batch.cu_seqlens.tolist()), batch.media, strict=True):
            yield Row(
                "batch",
                ids[start:end],
                mask[start:end],
                logprobs[start:end],
                versions[start:end],
                publications[start:end],
                _places(media),
            )


def slime_samples(group: Group) -> Iterator[Row]:
    for rollout in slime.samples(group, group_index=0, first_index=0):
        for sample in rollout:
            padding = [0] * (len(sample["tokens"]) - sample["response_length"])
            yield Row(
                "slime",
                sample["tokens"],
                padding + sample["loss_mask"],
                padding + sample["rollout_log_probs"],
                names=partial(_all_known, {int(version) for version in sample["weight_versions"]}),
            )


def verl_outputs(group: Group) -> Iterator[Row]:
    for trajectory in group.trajectories:
        for output in verl.agent_loop_outputs(trajectory, unknown_version=NO_VERSION):
            padding = [0] * len(output["prompt_ids"])
            yield Row(
                "verl",
                output["prompt_ids"] + output["response_ids"],
                padding + output["response_mask"],
                padding + output["response_logprobs"],
                names=partial(_range, *(output["extra_fields"][f"{end}_global_steps"] for end in ("min", "max"))),
            )


def verl_proto(group: Group) -> Iterator[Row]:
    rows = [segment for _, parts in rewarded(group) for segment in parts]
    if not rows:
        return
    prompt, response = max(row.prompt_length for row in rows), max(map(len, rows))
    batch = verl.data_proto(
        [group], prompt_length=prompt, response_length=response, pad_token_id=0, unknown_version=NO_VERSION
    ).batch
    for index in range(len(batch["input_ids"])):
        is_real = batch["attention_mask"][index].astype(bool)
        padding = [0] * int(is_real[:prompt].sum())
        in_response = is_real[prompt:]
        yield Row(
            "verl batch",
            batch["input_ids"][index][is_real].tolist(),
            padding + batch["response_mask"][index][in_response].tolist(),
            padding + batch["rollout_log_probs"][index][in_response].tolist(),
        )


def trl_samples(group: Group) -> Iterator[Row]:
    for sample in trl.rollout_samples(group, group_id=0):
        ids, mask = list(map(int, sample.input_ids)), list(map(int, sample.completion_mask))
        yield Row(
            "trl", ids, mask, list(map(float, sample.old_log_probs)), names=partial(_oldest, sample.model_version)
        )


def trl_rollouts(group: Group) -> Iterator[Row]:
    """The longest trace of each session, with or without a reward."""
    if any(segments(trajectory) for trajectory in group.trajectories):
        found = trl.rollouts([group], num_generations=len(group.trajectories), branches="longest")
        columns = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
        for prompt, completion, mask, logprobs in zip(*(found[name] for name in columns), strict=True):
            padding = [0] * len(prompt)
            yield Row("trl rollout", prompt + completion, padding + mask, padding + logprobs)


def prime_rl_samples(group: Group) -> Iterator[Row]:
    for sample in prime_rl.training_samples(group, env_name="t"):
        # The logits at an index predict the next token.
        temperatures = [None, *sample.temperatures[:-1]]
        yield Row("prime-rl", sample.token_ids, sample.mask, sample.logprobs, temperatures=temperatures)


def skyrl_rows(group: Group) -> Iterator[Row]:
    output = skyrl.generator_output([group])
    columns = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
    for prompt, response, mask, logprobs in zip(*(output[name] for name in columns), strict=True):
        padding = [0] * len(prompt)
        yield Row("skyrl", prompt + response, padding + mask, padding + logprobs)


def nemo_results(group: Group) -> Iterator[Row]:
    for result in nemo.results(group, task_index=0):
        tokens: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        for item in result["response"]["output"]:
            read = item["prompt_token_ids"][len(tokens) :]
            assert item["prompt_token_ids"][: len(tokens)] == tokens
            sampled = item["generation_token_ids"]
            tokens += read + sampled
            mask += [0] * len(read) + [1] * len(sampled)
            logprobs += [0.0] * len(read) + item["generation_log_probs"]
        yield Row("nemo gym", tokens, mask, logprobs)


def nemo_logs(group: Group) -> Iterator[Row]:
    for _, parts in rewarded(group):
        for segment in parts:
            tokens: list[int] = []
            mask: list[bool] = []
            logprobs: list[float] = []
            for message in nemo.message_log(segment):
                ids = message["token_ids"].tolist()
                is_sampled = message["role"] == "assistant"
                tokens += ids
                mask += [is_sampled] * len(ids)
                logprobs += message["generation_logprobs"].tolist() if is_sampled else [0.0] * len(ids)
            yield Row("nemo rl", tokens, mask, logprobs)


def openenv_turns(group: Group) -> Iterator[Row]:
    for trajectory in group.trajectories:
        for turn in openenv.training_trace(trajectory)["turns"]:
            prompt, sampled = turn["prompt_token_ids"], turn["completion_token_ids"]
            logprobs = [0.0] * len(prompt) + turn["per_token_logps"]
            yield Row("openenv", prompt + sampled, turn["loss_mask"], logprobs)


FORMATS: dict[str, Callable[[Group], Iterator[Row]]] = {
    "the SDK's rows": sdk_rows,
    "the SDK's batches": batches,
    "slime": slime_samples,
    "verl's agent loop": verl_outputs,
    "verl's batch": verl_proto,
    "TRL": trl_samples,
    "prime-rl": prime_rl_samples,
    "SkyRL": skyrl_rows,
    "NeMo-Gym": nemo_results,
    "NeMo-RL": nemo_logs,
    "OpenEnv": openenv_turns,
}
"""Formats that train every token with a reward."""
