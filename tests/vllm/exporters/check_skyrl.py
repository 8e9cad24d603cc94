"""SkyRL's own validation on the output of `polar.trainer.exporters.skyrl`, and its own batches through `polar.trainer.skyrl`.

    check_skyrl.py GROUPS

Runs in the trainers' environment (`packages.py`); GROUPS is a msgpack array of groups. Fails with SkyRL's error or an AssertionError.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic needs this one before Python 3.12, and SkyRL takes the other

from skyrl.train.dataset.preprocess import compute_prompt_mini_batch_boundaries  # noqa: E402
from skyrl.train.generators.base import GeneratorInterface, GeneratorOutput, TrajectoryID  # noqa: E402
from skyrl.train.generators.utils import prepare_generator_input  # noqa: E402
from skyrl.train.utils.trainer_utils import validate_generator_output  # noqa: E402

from polar.trainer.exporters.skyrl import generator_output  # noqa: E402
from polar.trainer.groups import Group  # noqa: E402
from polar.trainer.skyrl import PolarGenerator  # noqa: E402
from tests.vllm.exporters.training_requests import Requests  # noqa: E402
from topics.environment.settings import Settings  # noqa: E402

SAMPLES = 3
"""Of each prompt in a batch."""


def check_generator(groups: Sequence[Group]) -> None:
    """SkyRL makes a batch of prompts, our generator's output passes its checks, and its mini-batches have one prompt each."""
    rows: list[dict[str, Any]] = [
        {
            "prompt": [{"role": "user", "content": f"p{number}"}],
            "env_class": None,
            "env_extras": {},
            "uid": str(number),
        }
        for number in range(len(groups))
    ]
    made, _ = prepare_generator_input(
        rows, SAMPLES, {"temperature": 1.0, "top_p": 1.0, "top_k": -1}, "none", "train", 1
    )
    requests: Any = Requests(groups, samples=SAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        generator = PolarGenerator(
            lambda prompt: {"instruction": prompt["prompt"][0]["content"], "agent": {"harness": "pi"}},
            run="r1",
            positions=Path(folder),
            settings=Settings(data=Path(folder)),
        )
        generator._run = requests
        output = asyncio.run(generator.generate(made))
    assert isinstance(generator, GeneratorInterface)
    validate_generator_output(len(made["prompts"]), output, step_wise=True)
    uids = [one.instance_id for one in output["trajectory_ids"]]
    assert all(type(one) is TrajectoryID for one in output["trajectory_ids"])
    boundaries = compute_prompt_mini_batch_boundaries(uids, 1, len(groups), True, SAMPLES)
    assert [set(uids[start:end]) for start, end in boundaries] == [{row["uid"]} for row in rows]
    assert requests.published == [1]
    assert requests.instructions == [row["prompt"][0]["content"] for row in rows]


def main() -> None:
    groups = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Group])
    check_generator([*groups, Group("nothing to train", [])])
    output = generator_output(groups)
    assert GeneratorOutput.__annotations__.keys() <= output.keys()
    output["trajectory_ids"] = [TrajectoryID(one.instance_id, one.repetition_id) for one in output["trajectory_ids"]]
    validate_generator_output(len(groups), output, step_wise=True)
    print(len(output["response_ids"]), "rows")


if __name__ == "__main__":
    main()
