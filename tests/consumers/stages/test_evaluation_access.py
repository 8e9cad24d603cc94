"""What an evaluation may use: keys for models, and what the run left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from consumers.stages.claim_runner import Claim
from consumers.stages.evaluation_access import ClaimModels
from topics.control import Grant
from topics.environment import judge_keys
from topics.environment.claim_keys import ClaimKeys
from topics.environment.keys import Keyring, Limits, ensure_keys_file
from topics.environment.settings import Settings
from topics.stages import Ticket
from topics.types.session import Stage

MOST = Limits(calls=2, tokens=100, concurrent_calls=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(data=tmp_path, proxy_url="http://127.0.0.1:1")
    ensure_keys_file(settings.keys_path)
    return settings


def test_a_later_key_s_limits_include_those_of_the_keys_before_it(settings: Settings) -> None:
    """The proxy counts the calls of all keys of a claim together."""
    claim_key = ClaimKeys(settings.keys_path).key("t.0", 1, Stage.EVALUATE, "1.1")
    claim = Claim(Ticket("t.0", 0, 1, Stage.EVALUATE, 60.0, body=b"{}", ticket_id="1.1", claim_key=claim_key))
    claim.grant, claim.granted_ms = Grant("t.0", 1, claim.id), int(time.time() * 1000)
    models, secrets = ClaimModels(settings, claim, "m"), Keyring(settings.keys_path).secrets()

    def granted(limits: Limits) -> Limits:
        return judge_keys.check(models.access(limits).key, secrets, time.time()).limits

    assert granted(MOST) == MOST
    assert granted(Limits(calls=9, tokens=1000, concurrent_calls=3)) == Limits(11, 1100, 4)
    assert granted(Limits(calls=1)) == Limits(12, None, 68)
    assert granted(MOST) == Limits(14, None, 69)
