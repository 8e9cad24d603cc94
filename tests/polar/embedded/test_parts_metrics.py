"""The metrics of several processes in one text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from consumers.metrics import Metrics
from consumers.metrics_http import serve_metrics
from polar.embedded.parts_metrics import PartsMetrics
from tests.serving import free_port

HOST = "127.0.0.1"


async def test_each_sample_says_its_part_and_a_part_that_does_not_answer_is_down() -> None:
    first, second = Metrics(), Metrics()
    first.counter("polar_tasks", "Tasks", ("became",), lambda: {"submitted": 3})
    second.counter("polar_tasks", "Tasks", ("became",), lambda: {"submitted": 4})
    async with serve_metrics(first, HOST, 0) as one, serve_metrics(second, HOST, 0) as other:
        gone = f"http://{HOST}:{free_port()}/metrics"
        wrong = one.replace("/metrics", "/nowhere")
        merged = PartsMetrics({"one": one, "other": other, "gone": gone, "wrong": wrong}, "token")
        text = (await merged.scrape()).decode()
    assert text.count("# TYPE polar_tasks_total counter") == 1
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    ups = {sample.labels["part"]: sample.value for sample in found["polar_part_up"]}
    assert ups == {"one": 1, "other": 1, "gone": 0, "wrong": 0}
    tasks = {(sample.labels["part"], sample.labels["became"]): sample.value for sample in found["polar_tasks"]}
    assert tasks == {("one", "submitted"): 3, ("other", "submitted"): 4}
    assert {sample.labels["part"] for sample in found["process_resident_memory_bytes"]} == {"one", "other"}


async def test_a_part_that_runs_on_demand_is_there_or_is_not_and_never_down() -> None:
    page = Metrics()
    gone = f"http://{HOST}:{free_port()}/metrics"
    async with serve_metrics(page, HOST, 0) as url:
        for address, ups in ((gone, {"other": 0}), (url, {"other": 0, "page": 1})):
            merged = PartsMetrics({"page": address, "other": gone}, "token", on_demand=["page"])
            found = {family.name: family for family in text_string_to_metric_families((await merged.scrape()).decode())}
            assert {sample.labels["part"]: sample.value for sample in found["polar_part_up"].samples} == ups
