"""An engine that read another prompt: the harness gets its answer, the log says so, and nobody trains it."""

from __future__ import annotations

from msgspec.structs import replace
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from consumers.token_tree.tree import grow
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Garbage
from proxy.chat import Answer, Message, Usage
from proxy.metrics import ProxyMetrics
from proxy.prompt_doubts import PromptDoubts
from tests.proxy.conftest import Bench

ANSWER = Answer(Message("assistant", "hi"), "stop", Usage(1, 1), b"\1\0\0\0", b"\2\0\0\0", b"\0" * 4, "m")


def test_each_doubt_is_counted_by_engine_and_reason_and_each_engine_logged_once() -> None:
    metrics = ProxyMetrics()
    doubts = PromptDoubts(metrics)
    with capture_logs() as logged:
        doubts.take("a", ANSWER)
        for reason in ("ids", "ids", "count"):
            doubts.take("a", replace(ANSWER, prompt_doubt=reason))
        doubts.take("b", replace(ANSWER, prompt_doubt="count"))
    assert [(entry["action"], entry["engine"]) for entry in logged] == [
        ("prompt_doubted", "a"),
        ("prompt_doubted", "b"),
    ]
    counted = {
        (sample.labels["engine"], sample.labels["reason"]): sample.value
        for metric in metrics.misread.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert counted == {("a", "ids"): 2, ("a", "count"): 1, ("b", "count"): 1}


async def test_the_call_is_answered_recorded_with_its_doubt_and_masked(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Garbage(form="longer_prompt"))
    answer = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "else"}])
    assert answer.choices[0].message.content
    calls = await bench.calls(2)
    assert [call.prompt_doubt for call in calls] == ["count", None]
    tree = grow(calls, frozenset())
    assert tree.masked == ["prompt_differs", None]
    assert tree.drift == {"quarantine": 1}
