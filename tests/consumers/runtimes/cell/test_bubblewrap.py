"""What a cell is asked to show."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtimes.cell import bubblewrap

PARTS = st.sampled_from(["usr", "opt", "root", "lib", "python"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: Path("/", *parts))


@given(st.lists(PATHS))
def test_every_tool_is_shown_once_at_its_own_path_and_read_only(paths: list[Path]) -> None:
    mounts = bubblewrap.tools(paths)
    shown = [Path("/usr"), *(Path(mount["inside"]) for mount in mounts)]
    assert all(mount["sources"] == [mount["inside"]] and not mount["writable"] for mount in mounts)
    for path in paths:
        assert sum(path.is_relative_to(folder) for folder in shown) == 1
    assert set(shown[1:]) <= set(paths)


def test_variables_are_options_whatever_they_hold() -> None:
    options = bubblewrap.options({"A": "--bind / /", "B": "x\ny"}, PurePosixPath("/workspace"))
    assert options[-6:] == ["--setenv", "A", "--bind / /", "--setenv", "B", "x\ny"]


@pytest.mark.parametrize("environment", [{"A": "x\0--bind"}, {"A\0": "x"}])
def test_a_zero_byte_would_be_an_option_of_its_own(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        bubblewrap.options(environment, PurePosixPath("/workspace"))
