"""Long conversations that drift, on the chat templates of real models: no prompt is wrong, and nearly all continue what was sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proxy.engines.chat_templates import FAMILIES, Family, Server
from tests.proxy.engines.template_talks import outcome

VLLM_PAGE = Path(__file__).parents[3] / "docs" / "vllm.md"
BRANCHES = {
    "Gemma 4 E4B": "writes content behind the results of calls",
    "GLM-4.6": "ends turns with the next role's token, and reminders come in between",
    "GLM-4.7 Flash": "ends turns with the next role's token, and reminders come in between",
    "Seed-OSS": "writes no end of an empty answer",
}
"""Why prompts may branch although the answer before was not cut behind a call."""


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_no_prompt_of_a_long_conversation_is_wrong(family: Family) -> None:
    found = outcome(Server(family), 1)
    assert found.wrong == []
    assert found.restored > 5
    if family.name not in BRANCHES:
        assert found.branched == found.cut_calls


def test_the_page_has_the_rate_of_each_template() -> None:
    """Its figures are of more conversations: `python -m tests.proxy.engines.template_talks` prints them."""
    page = VLLM_PAGE.read_text("utf-8")
    assert [family.name for family in FAMILIES if f"| {family.name} |" not in page] == []
