"""What an evaluation may use besides its sandbox: models through the proxy, and what the run left in the blob store."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial

from consumers.evaluators.base import EvaluationError
from consumers.runtimes.base import ModelAccess
from consumers.stages.budget import Budget
from consumers.stages.claim_runner import Claim
from consumers.stages.patient_blobs import WAIT_S, patiently
from topics.environment import judge_keys
from topics.environment.blobs import BlobStore, DamagedBlobError
from topics.environment.keys import KeyClaims, Limits, issued_at
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError


class ClaimModels:
    """See `consumers.evaluators.base.Models`. A key ends with the evaluation's budget; it is in this process's memory alone.

    The proxy counts the calls of all keys of a claim together, so each key's limits are the sum of what all keys so far were granted.
    """

    def __init__(self, settings: Settings, claim: Claim, model_name: str) -> None:
        self._settings = settings
        self._claim = claim
        self._model_name = model_name
        self._granted = Limits(calls=0, tokens=0, concurrent_calls=0)
        """Sum over all keys."""

    def access(self, limits: Limits) -> ModelAccess:
        ticket, grant = self._claim.ticket, self._claim.grant
        if self._settings.proxy_url is None:
            raise NotReadyError(
                "POLAR_PROXY_URL isn't set; a worker that evaluates by a model must know where the proxy is"
            )
        if ticket.claim_key is None:
            raise NotReadyError(
                "the ticket has no claim key: its coordinator is older than judges; upgrade the coordinators"
            )
        self._granted = _sum(self._granted, limits)
        claims = KeyClaims(
            session_id=ticket.session_id,
            attempt=ticket.attempt,
            claim_id=self._claim.id,
            expires_at=int(time.time() + ticket.budget_s),
            issued_at=issued_at(self._claim.granted_ms),
            namespace=self._settings.namespace,
            mode="eval",
            limits=self._granted,
            log_partition=(grant.log_partition if grant else None) or 0,
            log_offset=(grant.log_offset if grant else None) or 0,
        )
        key = judge_keys.mint(claims, ticket.claim_key)
        return ModelAccess(self._settings.proxy_url.rstrip("/"), key, self._model_name)


def _sum(one: Limits, other: Limits) -> Limits:
    """Calls at a time are summed as well: the last request of an earlier key may still be under way."""
    return Limits(
        calls=None if one.calls is None or other.calls is None else one.calls + other.calls,
        tokens=None if one.tokens is None or other.tokens is None else one.tokens + other.tokens,
        concurrent_calls=one.concurrent_calls + other.concurrent_calls,
    )


class RunArtifacts:
    """See `consumers.evaluators.base.Artifacts`."""

    def __init__(self, blobs: BlobStore, references: Mapping[str, str], lost: Collection[str], budget: Budget) -> None:
        """`lost`: names of artifacts that the run's fact reports as lost. `budget`: the evaluation's."""
        self._blobs = blobs
        self._references = references
        self._lost = lost
        self._budget = budget

    async def read(self, name: str) -> bytes | None:
        if name in self._lost:
            raise EvaluationError(
                "artifact_lost",
                f"the run's artifact {name} was lost, so it can't be evaluated: the blob store didn't take it, or it couldn't be made (the "
                "run worker's log says why)",
            )
        reference = self._references.get(name)
        if reference is None:
            return None
        # Time must remain to report that the store didn't answer: the budget's end would be final.
        within_s = min(WAIT_S, self._budget.remaining_s / 2)
        try:
            return await patiently(partial(self._blobs.get, reference), within_s)
        except (FileNotFoundError, DamagedBlobError) as error:
            raise NotReadyError(
                f"the artifact {name} can't be read from this worker's blob store ({error}); every host needs the same POLAR_BLOBS"
            ) from None
        except OSError as error:
            raise NotReadyError(f"the artifact {name} can't be read now: {error}") from error
