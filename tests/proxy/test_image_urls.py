"""Which image URLs reach an engine. The engine is the scripted one, which fetches nothing; Kafka is real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from polar.scripted.engine import Engine as ScriptedEngine
from proxy.app import Proxy
from proxy.chat import ChatRequest, ImagePart, ImageUrl, Message
from proxy.errors import RefusalError
from proxy.image_urls import ImageHosts
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench, proxied
from topics.types.errors import InputError

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
METADATA = "http://169.254.169.254/latest/meta-data/x.png"
LISTED = "https://images.example.org/a.png"


def gemini(url: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"fileData": {"mimeType": "image/png", "fileUri": url}}]}]}


BODIES: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "/v1/chat/completions": (
        lambda url: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        "messages[0].content[0].image_url.url",
    ),
    "/v1/responses": (
        lambda url: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        "input[0].content[0].image_url",
    ),
    "/v1/responses/input_tokens": (
        lambda url: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        "input[0].content[0].image_url",
    ),
    "/v1/messages": (
        lambda url: {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}],
        },
        "messages[0].content[0].source.url",
    ),
    "/v1beta/models/m:generateContent": (gemini, "contents[0].parts[0].fileData.fileUri"),
    "/v1beta/models/m:countTokens": (
        lambda url: {"generateContentRequest": gemini(url)},
        "generateContentRequest.contents[0].parts[0].fileData.fileUri",
    ),
}
"""By path: a request with an image at a URL, and the field of the URL."""


@pytest.mark.parametrize("path", BODIES)
async def test_an_engine_is_sent_no_url_but_of_listed_hosts(
    path: str, bench: Bench, engine_url: str, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    bench.settings = bench.settings.model_copy(update={"image_hosts": "images.example.org"})
    body, field = BODIES[path]
    headers = {KEY_HEADER: bench.key()}
    async with proxied(bench, engine_url) as proxy:
        for url in (METADATA, "https://elsewhere.example/x.png", "https://images.example.org@elsewhere.example/x.png"):
            async with http.post(proxy.url + path, headers=headers, json={"model": "m"} | body(url)) as response:
                answer = await response.json()
                assert response.status == 400, answer
                assert f"{field}: an image must be a data: URL" in answer["error"]["message"]
        assert not scripted.record.calls("t.0")
        async with http.post(proxy.url + path, headers=headers, json={"model": "m"} | body(LISTED)) as response:
            assert response.status == 200, await response.text()


async def test_a_files_url_reaches_no_engine_in_any_dialect(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    for path, (body, field) in BODIES.items():
        request = {"model": "m"} | body("file:///etc/passwd")
        async with http.post(proxy.url + path, headers={KEY_HEADER: bench.key()}, json=request) as response:
            answer = await response.json()
            assert response.status == 400, answer
            # Google's dialect knows http addresses alone, and refuses the whole part.
            named = "contents[0].parts[0]" if "fileData" in field else field
            assert named in answer["error"]["message"]
    assert not scripted.record.calls("t.0")


def refuses(hosts: str, url: str) -> bool:
    request = ChatRequest([Message("user", [ImagePart(ImageUrl(url))])])
    try:
        ImageHosts(hosts).require(request, b"{}")
    except RefusalError:
        return True
    return False


@pytest.mark.parametrize(
    "url", [PIXEL, "DATA:image/png;base64,AAAA", LISTED, "HTTPS://Images.Example.Org./a.png?b=c#d"]
)
def test_data_and_listed_hosts_are_allowed(url: str) -> None:
    assert not refuses("other.example, images.example.org", url)


@pytest.mark.parametrize(
    "url",
    [
        METADATA, "file:///etc/passwd", "FILE:/etc/passwd", "", " data:,", "/etc/passwd", "ftp://images.example.org/a",
        "http://images.example.org/a.png", "https://images.example.org:8443/a", "https://images.example.org.evil.example/a",
        "https://evil.example/images.example.org", "https://images.example.org@evil.example/", "https://evil.example\\@images.example.org/",
        "https://images.example.org\\.evil.example/", "https://images.example.org\t.evil.example/", "https:images.example.org/a",
        "https:///images.example.org/a", "https://ｉmages.example.org/a", "https://images.example.org/a\n", "//images.example.org/a",
        "https://evil.example#images.example.org/", "https://sub.images.example.org/", "https://2130706433/", "https://[::1]/",
        "https://images.example.org:443:80/", "https://images.example.org:99999/", "blob:https://images.example.org/a", "gs://images.example.org/a",
    ],
)  # fmt: skip
def test_every_other_url_is_refused(url: str) -> None:
    assert refuses("images.example.org", url)
    assert refuses("", url)


def test_an_entry_says_which_hosts_and_how() -> None:
    for hosts, allowed, refused in (
        ("*.example.org", "https://a.b.example.org/x", "https://example.org/x"),
        ("a.example:8443", "https://a.example:8443/", "https://a.example/"),
        ("http://a.example", "http://a.example/x", "https://a.example/x"),
        ("https://a.example", "https://a.example/x", "http://a.example/x"),
        ("10.0.0.7", "https://10.0.0.7/x", "https://10.0.0.8/x"),
    ):
        assert (refuses(hosts, allowed), refuses(hosts, refused)) == (False, True), hosts


@pytest.mark.parametrize(
    "hosts", ["*", "a b", "ftp://a.example", "a.example!private", "a.example/x", "a.example:0", "*.10.0.0.7"]
)
def test_a_bad_entry_is_named(hosts: str) -> None:
    with pytest.raises(InputError, match="POLAR_IMAGE_HOSTS"):
        ImageHosts("good.example," + hosts)
