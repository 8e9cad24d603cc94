"""Records requests that were refused with a valid key, and became no call: a client with a wrong path would otherwise leave no trace.

Bounded: of each claim the first `FIRST_REFUSED` are recorded, then one each time that their number has doubled, which counts the others.
Requests without a valid key leave nothing, and neither does what isn't the request's fault (429, 5xx). Of a session that has ended nothing
is recorded once this proxy knows it: a program that is left over may go on asking for a day.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from aiohttp import web

from proxy.auth import Authenticator
from proxy.errors import Refusal, RefusalError
from proxy.lineage import client_of, log_text
from proxy.session_key import path_of, refused_key_of
from topics.completions import FIRST_REFUSED, RefusedRequest

RECORDED = frozenset(
    {Refusal.INVALID, Refusal.NOT_FOUND, Refusal.SLOW, Refusal.TOO_LARGE, Refusal.SPENT, Refusal.UPGRADE}
)
CLAIMS = 4096
"""Claims counted; the least recently refused is forgotten, and then counted anew."""
METHOD_LIMIT = 20
MESSAGE_LIMIT = 300


class RefusedRequests:
    """Counts the refused requests of all claims, and records them."""

    def __init__(
        self, authenticator: Authenticator, is_closed: Callable[[str], bool], record: Callable[[RefusedRequest], None]
    ) -> None:
        """`is_closed`: whether a claim's key is known to be closed, by its id; without asking the log."""
        self._authenticator = authenticator
        self._is_closed = is_closed
        self._record = record
        self._refused: OrderedDict[str, int] = OrderedDict()
        """Number of refused requests by claim id."""

    def add(self, request: web.Request, refused: RefusalError) -> None:
        """Records a refused request, if the log has no record of it, and its key is valid and not known to be closed."""
        if refused.is_recorded or refused.refusal not in RECORDED:
            return
        try:
            key = self._authenticator.claims_of(refused_key_of(request))
        except RefusalError:
            return
        if self._is_closed(key.claim_id):
            return
        number = self._refused[key.claim_id] = self._refused.pop(key.claim_id, 0) + 1
        if len(self._refused) > CLAIMS:
            self._refused.popitem(last=False)
        if not (requests := counted_by(number)):
            return
        self._record(
            RefusedRequest(
                session_id=key.session_id,
                attempt=key.attempt,
                claim_id=key.claim_id,
                refused_at=int(time.time() * 1000),
                method=log_text(request.method, METHOD_LIMIT),
                path=log_text(path_of(request)),
                status=refused.refusal.status,
                code=refused.refusal.code,
                message=log_text(refused.message, MESSAGE_LIMIT),
                client=client_of(request.headers),
                requests=requests,
            )
        )


def counted_by(number: int) -> int:
    """The requests that the record of a claim's refused request counts, by the request's number, from 1. 0: it isn't recorded."""
    if number <= FIRST_REFUSED:
        return 1
    doublings, remainder = divmod(number, FIRST_REFUSED)
    is_double = remainder == 0 and doublings.bit_count() == 1
    return number // 2 if is_double else 0
