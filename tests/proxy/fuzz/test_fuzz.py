"""Requests of all kinds of wrong: each gets an answer in its provider's shape, no failure of ours, no hang, and nothing leaks.

The suite fires some, the same ones each time; `make fuzz` (POLAR_FUZZ_REQUESTS=50000) as many others as it is told.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from proxy.dialects.base import dialects
from proxy.openapi import document
from proxy.session_key import KEY_HEADER
from tests.proxy.fuzz.bodies import CALLS, CallSpec
from tests.proxy.fuzz.mutations import spelled
from tests.proxy.fuzz.served import ANSWER_S, KEY, Served, Shot, judge, served
from tests.proxy.fuzz.shots import shots
from tests.waiting import until

REQUESTS = int(os.environ.get("POLAR_FUZZ_REQUESTS", "0"))
"""0: those of the suite."""
MUTATIONS = REQUESTS * 9 // 10 or 1500
FROM_DOCUMENT = REQUESTS - MUTATIONS if REQUESTS else 200
"""Fewer: to make one takes longer than to answer it."""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(240 + REQUESTS // 10)]
BATCH = 1500
"""Of one seed: what hypothesis remembers of a run grows with it."""
WARM = 10_000
"""Requests after which the proxy has all that it keeps."""
GROWTH_BYTES = 16 * 2**20
"""Allowed from then on, however many come: an allocator's ebb and flow."""
SPARE_FDS = 4
HELD = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
"""Of schemathesis's checks those that must hold of a server that takes what the document doesn't know, too."""


@pytest.fixture(scope="module")
def proxy(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(kafka, tmp_path_factory.mktemp("fuzz")) as proxy:
        for call in CALLS:
            proxy.fire(_shot(call))
        proxy.begin()
        yield proxy


def _shot(asked: CallSpec) -> Shot:
    body = spelled(asked.body, ascii_only=False).encode()
    headers = ((KEY_HEADER, KEY), ("Content-Length", str(len(body))))
    return Shot("POST", asked.target, headers, body, asked.dialect)


def fuzzed(fire: Callable[[st.DataObject], None], proxy: Served, total: int) -> None:
    """Fires so many requests, in batches, and then looks what is left of them."""
    for batch in range(0, total, BATCH):
        run = settings(
            max_examples=min(BATCH, total - batch),
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )(given(st.data())(fire))
        seed(secrets.randbits(64) if REQUESTS else batch)(run)()
        proxy.weigh()
    proxy.at_rest()
    proxy.assert_log_is_clean()


@pytest.mark.parametrize("asked", CALLS, ids=str)
def test_what_fuzzing_begins_from_is_answered(proxy: Served, asked: CallSpec) -> None:
    shot = _shot(asked)
    answer = proxy.fire(shot)
    assert answer.status == 200, answer
    judge(shot, answer)


def test_mutated_requests_of_harnesses_are_answered_or_refused(proxy: Served) -> None:
    def fire(data: st.DataObject) -> None:
        shot = data.draw(shots())
        judge(shot, proxy.fire(shot))

    fuzzed(fire, proxy, MUTATIONS)


def test_requests_made_from_the_document_are_answered_as_it_says(proxy: Served) -> None:
    load_all_checks()
    checks = CHECKS.get_by_names(HELD)
    schema = schemathesis.openapi.from_dict(document(dialects()))
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    base = "http://{}:{}".format(*proxy.address)

    with requests.Session() as session:

        def fire(data: st.DataObject) -> None:
            operation = data.draw(st.sampled_from(operations))
            case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(GenerationMode))))
            headers = {KEY_HEADER: proxy.keys.key()}
            response = case.call(base_url=base, session=session, headers=headers, timeout=ANSWER_S)
            proxy.statuses["document", response.status_code] += 1
            case.validate_response(response, checks=checks, headers=headers)

        fuzzed(fire, proxy, FROM_DOCUMENT)


def test_nothing_is_left_of_all_that(proxy: Served) -> None:
    proxy.hang_up()
    proxy.at_rest()
    until(lambda: proxy.process.num_fds() <= proxy.fds + SPARE_FDS, ANSWER_S)
    later = [size for fired, size in proxy.weights if fired >= WARM]
    assert not later or max(later) - later[0] <= GROWTH_BYTES, proxy.weights
    print(f"fds {proxy.fds} -> {proxy.process.num_fds()}, slowest {proxy.slowest_s:.2f} s")
    print(f"MiB by requests: {[(fired, round(size / 2**20)) for fired, size in proxy.weights]}")
    print(f"statuses: {sorted(proxy.statuses.items())}")
