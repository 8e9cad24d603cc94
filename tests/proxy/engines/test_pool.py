"""Which engine a model name leads to."""

from __future__ import annotations

import pytest

from proxy.engines.pool import Engines
from proxy.metrics import ProxyMetrics
from topics.environment.settings import EngineSettings
from topics.types.errors import InputError


def engines(**named: tuple[str, list[str]]) -> Engines:
    """By name: the model that its server is asked for, and what harnesses may ask for."""
    return Engines.of(
        {
            name: EngineSettings(urls=("http://127.0.0.1:9",), model=model, models=tuple(models))
            for name, (model, models) in named.items()
        }
    )


@pytest.mark.parametrize(
    ("asked", "engine"),
    [("large", "a"), ("small", "b"), ("tiny", "b"), ("own", "c"), ("any", "c"), (None, "c"), ("*", "c")],
)
def test_a_name_beats_any_name_and_the_order_decides(asked: str | None, engine: str) -> None:
    pool = engines(a=("m", ["large"]), b=("m", ["small", "tiny", "large"]), c=("own", ["*"]), d=("own", ["*"]))
    assert pool.for_model(asked).name == engine


def test_a_name_that_no_engine_has_is_the_first_ones() -> None:
    assert engines(a=("m", ["large"]), b=("m", ["small"])).for_model("gpt").name == "a"


def test_model_lists_show_what_may_be_asked_for_once() -> None:
    assert engines(a=("m", ["x", "y"]), b=("own", ["*"]), c=("m", ["y", "*"])).models == ["x", "y", "own"]


async def test_an_engines_calls_and_servers_are_counted_by_its_name() -> None:
    pool = engines(a=("m", ["*"]), b=("m", ["*"]))
    metrics = ProxyMetrics()
    metrics.watch_engines(pool)
    async with pool.default.admission.turn():
        told = metrics.text().decode()
    assert 'polar_proxy_engine_calls{engine="a"} 1.0' in told
    assert 'polar_proxy_engine_calls{engine="b"} 0.0' in told
    assert 'polar_proxy_engine_waiting{engine="a"} 0.0' in told
    assert 'polar_proxy_engine_servers_up{engine="a"} 1.0' in told


def test_an_unknown_mode_names_those_that_there_are() -> None:
    with pytest.raises(
        InputError,
        match=r"engines\.\w+\.mode: must be chat, tokens, or an engine plug-in: no such engine; there are: sglang_tokens, vllm_chat",
    ):
        Engines.of({"a": EngineSettings(urls=("http://127.0.0.1:9",), model="m", mode="smoke")})
