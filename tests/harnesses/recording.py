"""What a CLI sends, written down for `tests/proxy/dialects/test_recorded.py`: structure, ids and the script's own words, nothing private.

A text of more than `PROSE` characters becomes a placeholder, equal texts equal ones; folders of the machine have names of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from topics.types.completion import Completion

PROSE = 60
KEPT = ("signature", "thoughtSignature", "thought_signature", "encrypted_content")
"""Fields of dialects whose long values are ours: reasoning, sealed."""
PRIVATE = ("user_id", "installation_id", "x-codex-installation-id")
HEADERS = re.compile(
    r"user-agent|x-app|.*session.*|.*thread.*|.*agent-id|.*codex-window.*|x-openai-subagent|x-codex-turn-metadata"
)
HOP = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding")
BODY_LIMIT = 64 * 1024 * 1024


@dataclass
class Recording:
    """The requests of a run, in order."""

    url: str
    """To be called in the proxy's place."""
    requests: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def recording(proxy_url: str) -> AsyncIterator[Recording]:
    """Passes every request on to a proxy, and its answer back as it comes."""

    async def relayed(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        told = {name: value for name, value in request.headers.items() if HEADERS.fullmatch(name.lower())}
        sent = {"method": request.method, "path": request.path_qs, "headers": told}
        made.requests.append({**sent, "body": json.loads(body) if body else None})
        passed = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        async with client.request(request.method, proxy_url + request.path_qs, headers=passed, data=body) as answer:
            heard = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
            response = web.StreamResponse(status=answer.status, headers=heard)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_route("*", "/{rest:.*}", relayed)
    runner = web.AppRunner(app, access_log=None)
    async with aiohttp.ClientSession() as client:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made = Recording(f"http://127.0.0.1:{runner.addresses[0][1]}")
        try:
            yield made
        finally:
            await runner.cleanup()


def write(
    path: Path, about: Mapping[str, str], made: Recording, calls: list[Completion], folders: Mapping[str, str]
) -> None:
    """`about` and the calls, each with the answer that the log has; `folders` are what the machine's are to be named."""
    entries: list[dict[str, Any]] = []
    said = {text for call in calls for text in _texts(json.loads(call.answer))}
    before: dict[str, Any] = {}
    asked = [request for request in made.requests if request["body"] is not None]
    for request, call in zip(asked, calls, strict=True):
        body = _cleaned(_named(request["body"], folders), said)
        # A request repeats most of the one before: only the fields that differ are written.
        changed = {name: value for name, value in body.items() if before.get(name) != value}
        entries.append(
            {
                "path": request["path"],
                "headers": _cleaned(_named(request["headers"], folders), said),
                "body": changed,
                "without": sorted(before.keys() - body.keys()),
                "answer": _named(json.loads(call.answer), folders),
                "finish_reason": call.finish_reason,
            }
        )
        before = body
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "calls": entries}, ensure_ascii=False, indent=1) + "\n")


def _named(told: Any, folders: Mapping[str, str]) -> Any:
    text = json.dumps(told, ensure_ascii=False)
    for folder, name in folders.items():
        text = text.replace(folder, name)
    return json.loads(text)


def _texts(answer: dict[str, Any]) -> list[str]:
    return [answer.get("content") or "", answer.get("reasoning") or ""]


def _cleaned(told: Any, said: set[str], name: str = "") -> Any:
    """`said` is what the script says, and stays; so do arguments of tools."""
    if isinstance(told, dict):
        # What tools are for is said to the model; what is tested is how they are declared.
        is_tool = "description" in told and ("name" in told or "type" in told)
        drops = {"description"} if is_tool and isinstance(told["description"], str) else set()
        return {key: _cleaned(value, said, key) for key, value in told.items() if key not in drops}
    if isinstance(told, list):
        return [_cleaned(each, said) for each in told]
    if not isinstance(told, str) or (name not in PRIVATE and (len(told) <= PROSE or _is_kept(told, said, name))):
        return told
    return f"«{sha256(told.encode()).hexdigest()[:8]} {len(told)}»"


def _is_kept(told: str, said: set[str], name: str) -> bool:
    return name in KEPT or told in said or (name in ("arguments", "input") and told.startswith("{"))
