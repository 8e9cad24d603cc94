"""The metrics of all parts of a `polar up` in one text, each sample with the label `part`: one address for Prometheus.

The parts are asked when somebody asks for the text; otherwise nothing is computed. `polar_part_up{part}` is 0 for a part that doesn't
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from topics.environment import http_json

ANSWER_S = 5.0
"""For one part, which asks Kafka for up to 3 s. Prometheus waits 10 s by default."""


class PartsMetrics:
    """Merges what the parts tell."""

    def __init__(self, urls: Mapping[str, str], token: str, on_demand: Collection[str] = ()) -> None:
        """`urls`: of the parts' metrics, by the parts' names. `token`: the control token, for which the proxy asks.

        `on_demand`: parts that run only while they are used. Without an answer of such a part, it has no `polar_part_up`.
        """
        self._urls = urls
        self._token = token
        self._on_demand = on_demand

    def unready_reason(self) -> str | None:
        """Always None: `polar up` prints its addresses only once it is ready."""
        return None

    async def scrape(self) -> bytes:
        """Prometheus' text format."""
        answers = await asyncio.gather(*(asyncio.to_thread(_asked, url, self._token) for url in self._urls.values()))
        found = dict(zip(self._urls, answers, strict=True))
        registry = CollectorRegistry()
        registry.register(
            _Merged(
                {part: figures for part, figures in found.items() if figures is not None or part not in self._on_demand}
            )
        )
        return generate_latest(registry)


def _asked(url: str, token: str) -> list[Metric] | None:
    """The part's metrics; None: it doesn't tell them."""
    try:
        answer = http_json.send(url, token=token, timeout_s=ANSWER_S)
        return list(text_string_to_metric_families(answer.body.decode())) if answer.status == 200 else None
    except (http_json.NoAnswerError, ValueError):
        return None


class _Merged(Collector):
    def __init__(self, found: Mapping[str, Iterable[Metric] | None]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("polar_part_up", "1 if the part of `polar up` tells its metrics", labels=["part"])
        merged: dict[str, Metric] = {}
        for part, told in self._found.items():
            up.add_metric([part], 0.0 if told is None else 1.0)
            for family in told or ():
                known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                known.samples += [sample._replace(labels={**sample.labels, "part": part}) for sample in family.samples]
        yield up
        yield from merged.values()
