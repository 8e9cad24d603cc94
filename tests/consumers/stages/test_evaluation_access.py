"""What an evaluation may use: keys for models, and what the run left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from consumers.evaluators.base import EvaluationError
from consumers.stages.budget import Budget
from consumers.stages.claim_runner import Claim
from consumers.stages.evaluation_access import ClaimModels, RunArtifacts
from tests.s3_server import KEY_ID, SECRET
from tests.serving import free_port
from topics.control import Grant
from topics.environment import judge_keys, s3
from topics.environment.blobs import FolderBlobs
from topics.environment.claim_keys import ClaimKeys
from topics.environment.keys import Keyring, Limits, ensure_keys_file
from topics.environment.s3 import S3Address
from topics.environment.s3_blobs import S3Blobs
from topics.environment.settings import Settings
from topics.stages import Ticket
from topics.types.errors import NotReadyError
from topics.types.session import Stage

REFERENCE = f"blob:sha256/{'0' * 64}"
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


def a_budget(seconds: float) -> Budget:
    return Budget(seconds, lambda: True)


async def test_what_the_run_left_is_read_and_what_it_did_not_leave_is_none(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    left = RunArtifacts(blobs, {"patch": blobs.put(b"+ mended").ref}, (), a_budget(60.0))
    assert (await left.read("patch"), await left.read("agent_log")) == (b"+ mended", None)


async def test_an_artifact_that_this_store_lacks_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="every host needs the same POLAR_BLOBS"):
        await RunArtifacts(FolderBlobs(tmp_path), {"patch": REFERENCE}, (), a_budget(60.0)).read("patch")


async def test_a_store_that_does_not_answer_is_tried_again_before_the_budget_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3, "RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    nobody = S3Blobs(S3Address("nowhere", ""))
    with pytest.raises(NotReadyError, match=r"the artifact patch can't be read now: .*POLAR_BLOBS"):
        await RunArtifacts(nobody, {"patch": REFERENCE}, (), a_budget(1.0)).read("patch")


async def test_an_artifact_that_was_lost_is_not_one_that_the_run_did_not_leave(tmp_path: Path) -> None:
    left = RunArtifacts(FolderBlobs(tmp_path), {}, ["patch"], a_budget(60.0))
    with pytest.raises(EvaluationError, match="the run's artifact patch") as error:
        await left.read("patch")
    assert (error.value.code, error.value.is_infra) == ("artifact_lost", False)
    assert await left.read("agent_log") is None
