"""Each test of this run is in one tier, which its folder agrees with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import tiers


def test_each_test_has_a_tier_and_systems_are_where_one_worker_runs_them(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        (tier,) = [value for name, value in item.user_properties if name == "tier"]
        assert item.get_closest_marker(str(tier)) is not None
        assert tier != "system" or item.nodeid.startswith(tiers.SHARED_FOLDERS), item.nodeid


@pytest.mark.parametrize(
    ("path", "marks", "fixtures", "tier"),
    [
        ("tests/topics/test_a.py", [], [], "pure"),
        ("tests/topics/test_a.py", [], ["kafka"], "contract"),
        ("tests/topics/test_a.py", ["contract"], [], "contract"),
        ("tests/topics/test_a.py", ["contract", "hard"], [], "hard"),
        ("tests/vllm/test_a.py", ["vllm"], [], "hard"),
        ("tests/acceptance/test_a.py", [], ["kafka"], "hard"),
        ("tests/acceptance/up/test_a.py", [], [], "system"),
        ("tests/acceptance/up/test_a.py", ["pure"], [], "pure"),
    ],
)
def test_marks_then_folders_then_fixtures_name_the_tier(
    path: str, marks: list[str], fixtures: list[str], tier: str
) -> None:
    assert tiers.tier_of(path, marks, fixtures) == tier


def test_two_marks_of_tiers_are_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="contract"):
        tiers.tier_of("tests/test_a.py", ["pure", "contract"], [])


def test_a_pure_test_can_start_no_process() -> None:
    with pytest.raises(AssertionError, match="mark it `contract`"):
        subprocess.run([sys.executable, "-c", ""])
