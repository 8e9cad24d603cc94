"""NeMo-Gym's own types on the results of `polar.trainer.exporters.nemo`.

    check_nemo_gym.py GROUPS

Runs in the trainers' environment (`packages.py`); GROUPS is a msgpack array of groups. Fails with pydantic's error or an AssertionError.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import msgspec

# Its statistics of rewards import them beside the types; nothing here calls them.
for name, attribute in (("scipy", "stats"), ("wandb", "Histogram")):
    sys.modules[name] = ModuleType(name)
    setattr(sys.modules[name], attribute, None)

from nemo_gym.base_resources_server import BaseVerifyResponse  # noqa: E402
from nemo_gym.openai_utils import NeMoGymResponseOutputMessageForTraining  # noqa: E402

from polar.trainer.exporters.nemo import results  # noqa: E402
from polar.trainer.groups import Group  # noqa: E402


def check(group: Group, task_index: int) -> int:
    """The number of results that NeMo-Gym took."""
    exported = results(group, task_index=task_index, branches="longest")
    for result in exported:
        taken = BaseVerifyResponse.model_validate(result)
        assert all(type(item) is NeMoGymResponseOutputMessageForTraining for item in taken.response.output)
        sent = taken.model_dump(mode="json")
        assert sent["reward"] == result["reward"]
        for item, dumped in zip(result["response"]["output"], sent["response"]["output"], strict=True):
            assert item.items() <= dumped.items()
    return len(exported)


def main() -> None:
    groups = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Group])
    print(sum(check(group, number) for number, group in enumerate(groups)), "rows")


if __name__ == "__main__":
    main()
