"""The parts of a composite together: sums, gates, budgets, protected files; with evaluators of our own and with a user's."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import pytest

from consumers.evaluators.base import REASON_LIMIT, Case, EvaluationError, Verdict
from consumers.evaluators.command import OUTPUT
from consumers.evaluators.composite import Composite
from consumers.runtimes.base import Exec, SandboxError
from topics.types.errors import InputError

pytestmark = pytest.mark.contract

SCRIPT = "consumers.evaluators.script:Script"
"""By its class, so that the tests don't depend on what is installed."""
MODULE = "judges_of_test_composite"


class Fixed:
    """A user's evaluator, whose config is its verdict."""

    budgets: ClassVar[list[float | None]] = []

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    async def evaluate(self, case: Case) -> Verdict:
        self.budgets.append(case.budget_s)
        if "raises" in self._config:
            raise self._config["raises"]
        return self._config["verdict"] if "verdict" in self._config else Verdict(**self._config)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    module.__dict__["Fixed"] = Fixed
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(Fixed, "budgets", [])


def fixed(name: str, reward: object, weight: float = 1.0, at_least: float | None = None, **more: Any) -> dict[str, Any]:
    config = {"reward": reward} | more
    return {"strategy": f"{MODULE}:Fixed", "name": name, "config": config, "weight": weight, "at_least": at_least}


def script(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"strategy": SCRIPT, "name": name, "config": {"command": command, **more.pop("config", {})}, **more}


def worth(reward: str) -> str:
    return f'echo {reward} | tee "$POLAR_REWARD_DIR/reward.txt"'


async def judged(case: Case, *parts: dict[str, Any]) -> Verdict:
    return await Composite({"parts": list(parts)}).evaluate(case)


async def test_the_reward_is_the_weighted_sum_with_reasons_and_artifacts_by_part(case: Case) -> None:
    tests = {"test_command": "echo a: PASSED", "expected_output_json": {"a": "PASSED", "b": "PASSED"}}
    verdict = await judged(
        case,
        script("style", worth("0.5"), weight=0.4),
        {"strategy": "session_completed", "weight": 0.6},
        {"strategy": "test_on_output", "config": tests, "weight": 7},
    )
    assert verdict.reward == 0.8
    assert verdict.reason == (
        "style 0.5 × 0.4; session_completed 1 × 0.6; test_on_output 0 × 7: 1 of 2 tests differ: b is not reported, not PASSED"
    )
    assert verdict.artifacts.keys() == {
        "style.evaluation_output",
        "test_on_output.evaluation_output",
        "test_on_output.evaluation_report",
    }
    assert verdict.artifacts["style.evaluation_output"] == b"0.5\n"


async def test_names_of_nested_composites_are_nested(case: Case) -> None:
    inner = {"strategy": "consumers.evaluators.composite:Composite", "name": "inner", "weight": 0.5}
    verdict = await judged(case, inner | {"config": {"parts": [script("a", worth("0.5"))]}}, fixed("b", 1))
    assert verdict.reward == 1.25
    assert verdict.artifacts.keys() == {f"inner.a.{OUTPUT}"}
    assert verdict.reason == "inner 0.5 × 0.5: a 0.5 × 1; b 1 × 1"


@pytest.mark.parametrize(
    "pairs", [[(0.25, 0.5)], [(1, 2), (1, 3)], [(1, 1), (1, -0.25)], [(1, 0.7), (1, 0.2), (1, 0.1)]]
)
async def test_weights_are_not_normalised(case: Case, pairs: list[tuple[float, float]]) -> None:
    parts = (fixed(f"p{n}", reward, weight) for n, (reward, weight) in enumerate(pairs))
    assert (await judged(case, *parts)).reward == pytest.approx(sum(reward * weight for reward, weight in pairs))


async def test_weights_that_sum_to_1_give_1_exactly(case: Case) -> None:
    assert (await judged(case, fixed("a", 1, 0.7), fixed("b", 1, 0.2), fixed("c", 1, 0.1))).reward == 1.0


@pytest.mark.parametrize(("reward", "total", "ran"), [(0.5, 1.5, 2), (0.49, 0.0, 1), (-1, 0.0, 1)])
async def test_a_gate_that_fails_makes_the_whole_0_and_ends_it(
    case: Case, reward: float, total: float, ran: int
) -> None:
    gate = fixed("gate", reward, at_least=0.5, reason="three tests failed", call_rewards={"c": 1.0})
    verdict = await judged(case, gate, fixed("b", 1))
    assert (verdict.reward, len(Fixed.budgets)) == (total, ran)
    if ran == 1:
        assert verdict.reason == f"gate is less than 0.5; gate {reward:g} × 1: three tests failed"
        assert verdict.call_rewards is None


async def test_a_gate_may_have_no_weight(case: Case) -> None:
    assert (await judged(case, fixed("gate", 1, weight=0, at_least=1), fixed("b", 0.25))).reward == 0.25


async def test_a_part_without_a_reward_leaves_the_whole_without_one(case: Case) -> None:
    verdict = await judged(case, fixed("a", 1), fixed("b", None, reason="no idea"), fixed("gate", 0, at_least=1))
    assert (verdict.reward, verdict.reason) == (None, "a 1 × 1; b no reward: no idea")
    assert (await judged(case, fixed("gate", 0, at_least=1), fixed("b", None))).reward == 0.0


async def test_an_evaluation_error_names_the_part_and_keeps_what_was_found(case: Case) -> None:
    alone = {"command": worth("NaN"), "reads_files_of_the_run": False}
    with pytest.raises(EvaluationError, match=r"^broken: reward\.txt must hold a finite number") as raised:
        await judged(case, script("good", worth("1")), script("broken", worth("NaN")) | {"config": alone})
    assert raised.value.code == "bad_reward"
    assert raised.value.artifacts == {f"good.{OUTPUT}": b"1\n", f"broken.{OUTPUT}": b"NaN\n"}


@pytest.mark.parametrize("verdict", [Verdict(math.nan), Verdict(1.0, {"c": math.inf}), 1.0, None])
async def test_a_bad_verdict_of_a_part_passes_no_gate_and_fails_none(case: Case, verdict: object) -> None:
    with pytest.raises(EvaluationError, match=r"^gate: ") as raised:
        await judged(case, fixed("gate", None, at_least=0.5) | {"config": {"verdict": verdict}})
    assert raised.value.code == "bad_reward"


async def test_a_failure_of_the_machine_passes_through(case: Case) -> None:
    with pytest.raises(SandboxError, match="gone"):
        await judged(case, fixed("a", 1) | {"config": {"raises": SandboxError("runtime_gone", "gone")}})


async def test_rewards_of_calls_are_weighted_and_summed(case: Case) -> None:
    parts = (
        fixed("a", 1, 0.5, call_rewards={"x": 1.0, "y": 2.0}),
        fixed("b", 1, 2, call_rewards={"y": 1.0}),
        fixed("c", 1),
    )
    assert (await judged(case, *parts)).call_rewards == {"x": 0.5, "y": 3.0}


async def test_a_part_that_hangs_ends_within_its_share(case: Case) -> None:
    verdict = await judged(replace(case, budget_s=3.0), script("hangs", "sleep 60"), fixed("b", 1), fixed("c", 1))
    assert verdict.reward == 2.0
    assert re.match(
        r"hangs 0 × 1: the command was stopped. It didn't end within timeout_s = 0\.\d+ s", verdict.reason or ""
    )


async def test_each_part_may_use_its_share_of_the_time_that_is_left(case: Case) -> None:
    await judged(replace(case, budget_s=6000.0), fixed("a", 1), fixed("b", 1), fixed("c", 1))
    assert [round(budget or 0, -3) for budget in Fixed.budgets] == [2000.0, 3000.0, 6000.0]


async def test_long_reasons_hide_no_part(case: Case) -> None:
    verdict = await judged(case, *(fixed(f"p{n}", 0, reason="x" * 5000) for n in range(20)))
    assert all(f"p{n} 0 × 1: xxx" in (verdict.reason or "") for n in range(20))
    assert len(verdict.reason or "") <= REASON_LIMIT


async def test_protected_files_of_all_parts_are_put_back(case: Case) -> None:
    """Each part keeps its own, in one store."""
    parts = [
        script("a", worth("$(cat a/x)"), config={"protected": ["a"]}),
        script("b", worth("$(cat b/x)"), config={"protected": ["b"]}),
        fixed("c", 0),
    ]
    runtime = case.runtime
    for name in ("a", "b"):
        await runtime.write_file(f"{name}/x", b"0.25\n")
    await Composite({"parts": parts}).keep(runtime)
    for name in ("a", "b"):
        await runtime.write_file(f"{name}/x", b"1\n")
    await runtime.write_file("conftest.py", b"")
    composite = Composite({"parts": parts})
    assert await composite.restore(runtime) is None
    assert (await composite.evaluate(case)).reward == 0.5
    with pytest.raises(FileNotFoundError):
        await runtime.read_file("conftest.py", 1)


async def test_files_in_the_way_of_a_part_are_named_with_it(case: Case) -> None:
    composite = Composite({"parts": [fixed("a", 1), script("b", "true", config={"protected": ["deep/file"]})]})
    await case.runtime.write_file("deep/file", b"")
    await composite.keep(case.runtime)
    await case.runtime.exec(Exec("rm -r deep && touch deep"))
    assert (await composite.restore(case.runtime) or "").startswith("b: the protected files can't be put back")


async def test_a_part_that_no_worker_has_is_the_tasks_mistake(case: Case) -> None:
    composite = Composite({"parts": [{"strategy": "nowhere:Nothing"}]})
    await composite.keep(case.runtime)
    assert await composite.restore(case.runtime) is None, "a reason would be a reward of 0"
    with pytest.raises(InputError, match="nowhere:Nothing"):
        await composite.evaluate(case)


PART: dict[str, Any] = {"strategy": "session_completed"}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "parts"),
        ({"parts": []}, "parts"),
        ({"parts": PART}, "parts"),
        ({"parts": [PART] * 21}, "parts"),
        ({"parts": [PART], "weights": [1]}, "weights"),
        ({"parts": [PART | {"weight": 0}]}, "parts"),
        ({"parts": [PART, PART]}, "parts[0].name"),
        ({"parts": ["session_completed"]}, "parts[0]"),
        ({"parts": [PART, {}]}, "parts[1].strategy"),
        ({"parts": [{"strategy": "no_such"}]}, "parts[0].strategy"),
        ({"parts": [PART | {"gate": 1}]}, "parts[0].gate"),
        ({"parts": [PART | {"config": {"x": 1}}]}, "parts[0].config.x"),
        ({"parts": [PART | {"config": [1]}]}, "parts[0].config"),
        ({"parts": [{"strategy": "test_on_output"}]}, "parts[0].config.test_command"),
        *(
            ({"parts": [PART | {"weight": wrong}]}, "parts[0].weight")
            for wrong in (True, "1", math.nan, math.inf, None)
        ),
        *(({"parts": [PART | {"at_least": wrong}]}, "parts[0].at_least") for wrong in (True, "1", math.nan)),
        *(({"parts": [PART | {"name": wrong}]}, "parts[0].name") for wrong in ("", "a.b", "a/b", 1, "x" * 65)),
    ],
)
def test_a_bad_config_is_refused_by_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as raised:
        Composite(config)
    assert raised.value.field == f"evaluator.config.{field}"
    assert str(raised.value).startswith(f"evaluator.config.{field}: ")
