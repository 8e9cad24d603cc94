"""The containers in which tasks run have limits; `landlock`, their runtime, has none."""

from __future__ import annotations

import pytest
import yaml

from tests.compose.stack import COMPOSE


@pytest.mark.parametrize("stage", ["init", "run", "evaluate"])
def test_a_container_of_a_stage_has_limits_of_memory_and_processes(stage: str) -> None:
    service = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text())["services"][stage]
    assert service["mem_limit"] == "${POLAR_STAGE_MEMORY:-4g}"
    assert service["pids_limit"] == 4096
