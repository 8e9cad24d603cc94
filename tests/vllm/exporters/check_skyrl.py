"""SkyRL's own validation on the output of `polar.trainer.exporters.skyrl`.

    check_skyrl.py GROUPS

Runs in the trainers' environment (`packages.py`); GROUPS is a msgpack array of groups. Fails with SkyRL's error or an AssertionError.
"""

from __future__ import annotations

import sys
import typing
from pathlib import Path

import msgspec
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic needs this one before Python 3.12, and SkyRL takes the other

from skyrl.train.generators.base import GeneratorOutput, TrajectoryID  # noqa: E402
from skyrl.train.utils.trainer_utils import validate_generator_output  # noqa: E402

from polar.trainer.exporters.skyrl import generator_output  # noqa: E402
from polar.trainer.groups import Group  # noqa: E402


def main() -> None:
    groups = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Group])
    output = generator_output(groups)
    assert GeneratorOutput.__annotations__.keys() <= output.keys()
    output["trajectory_ids"] = [TrajectoryID(one.instance_id, one.repetition_id) for one in output["trajectory_ids"]]
    validate_generator_output(len(groups), output, step_wise=True)
    print(len(output["response_ids"]), "rows")


if __name__ == "__main__":
    main()
