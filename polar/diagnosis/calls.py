"""Why the model calls of a running session fail: causes at its proxy and its engine."""

from __future__ import annotations

from collections.abc import Set

from polar.diagnosis.causes import Cause, Entry
from polar.diagnosis.facts import Facts
from proxy.errors import REQUESTS_FAULT
from topics.types.session import Phase

FAILING = frozenset({"unreachable", "timeout", "server_error", "overloaded", "busy", "cut", "unfinished"})
"""Codes of calls whose engine is down or overloaded."""
UNUSABLE = frozenset(
    {
        "no_token_ids",
        "bad_token_ids",
        "bad_logprobs",
        "length_mismatch",
        "malformed",
        "misconfigured",
        "unparsed",
    }
)
"""Codes of calls whose answer lacks what training needs, or can't be read."""
TOOL_PARSER = "--tool-call-parser"
"""vLLM names this option when it refuses tools because it lacks a parser."""


def _last_failed(facts: Facts) -> bool:
    return facts.phase is Phase.RUNNING and facts.calls.error is not None


def _lacks_parser(facts: Facts) -> bool:
    return facts.calls.error is not None and TOOL_PARSER in facts.calls.error.message


def _failed_with(facts: Facts, codes: Set[str]) -> bool:
    error = facts.calls.error
    return _last_failed(facts) and not _lacks_parser(facts) and error is not None and error.code in codes


def _failed_otherwise(facts: Facts) -> bool:
    error = facts.calls.error
    is_known = error is not None and error.code in FAILING | UNUSABLE | REQUESTS_FAULT
    return _last_failed(facts) and not _lacks_parser(facts) and not is_known


ENTRIES = (
    Entry(
        Cause.NO_PROXY,
        lambda facts: facts.phase is Phase.RUNNING and not facts.system.processes.get("proxy"),
        "No proxy is alive, so its model calls reach nothing.",
        "Start one: `polar proxy`, at the address in POLAR_PROXY_URL.",
    ),
    Entry(
        Cause.PROXY_NOT_READY,
        lambda facts: (
            facts.phase is Phase.RUNNING
            and bool(facts.system.processes.get("proxy"))
            and facts.system.proxy is not None
        ),
        "The proxy doesn't serve calls: {proxy}.",
        "Read the proxy's log. `polar doctor` checks Kafka and the proxy.",
    ),
    Entry(
        Cause.ENGINE_DOWN,
        lambda facts: facts.phase is Phase.RUNNING and bool(facts.system.engines_down),
        "The proxy finds no server of these engines up: {engines}.",
        "Start the inference server. `polar doctor --engine URL` checks it.",
    ),
    Entry(
        Cause.ENGINE_FAILS,
        lambda facts: _failed_with(facts, FAILING) and not facts.system.engines_down,
        "Its last model call failed at the engine ({call_error}).",
        "Check the inference server and its load: `polar doctor --engine URL`. Most harnesses try again by themselves.",
    ),
    Entry(
        Cause.NO_TOOL_PARSER,
        _lacks_parser,
        "The engine refuses requests with tools, because it has no tool parser ({call_error}).",
        "Start vLLM with --enable-auto-tool-choice and the --tool-call-parser of the model's family; `polar doctor --engine URL` checks "
        "it.",
    ),
    Entry(
        Cause.ANSWER_UNUSABLE,
        lambda facts: _failed_with(facts, UNUSABLE),
        "The engine's last answer can't be used for training, so it was not given to the harness ({call_error}).",
        "`polar doctor --engine URL` says which of the engine's settings must change.",
    ),
    Entry(
        Cause.CALL_REFUSED,
        lambda facts: _failed_with(facts, REQUESTS_FAULT),
        "The engine refused its last request ({call_error}).",
        "Change the request: a smaller `max_tokens` or context window of the agent, or an engine with a longer context. "
        "`polar show {name}` prints the call.",
    ),
    Entry(
        Cause.CALL_FAILED,
        _failed_otherwise,
        "Its last model call failed ({call_error}).",
        "Read the proxy's log. `polar show {name}` prints the call.",
    ),
    Entry(
        Cause.REQUESTS_REFUSED,
        lambda facts: facts.phase is Phase.RUNNING and facts.calls.refused > 0 and facts.calls.answered == 0,
        "It has no answered call; the proxy refused {refused} of its requests, the last one {refusal}.",
        "Correct the client's base URL or request. `polar show {name}` lists the refused requests.",
    ),
)
