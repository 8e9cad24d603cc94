"""Images of prompts, from a harness's messages to the trajectory: what the log names, and which prompts are one.

The stand-in is the engine: a template with two placeholders for any image, so that token ids tell no image from another.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import le
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from consumers.token_tree.branches import PlacedCall
from consumers.token_tree.placement import place_calls
from proxy.blob_writer import Batch, BlobWriter
from proxy.capture import CallSpec, answered_record
from proxy.chat import Answer, AudioPart, AudioUrl, ChatRequest, ImagePart, ImageUrl, Message, TextPart, Usage
from proxy.media import PromptMedia
from proxy.metrics import ProxyMetrics
from proxy.session.claim_state import ClaimState
from proxy.session.history import transcript
from proxy.session.logged_calls import LoggedCall
from proxy.session.recovery import ClaimLog
from tests.consumers.token_tree.transcripts import build_record
from topics.calls.delta import Spelled
from topics.environment.blobs import BlobRef, BlobStore, FolderBlobs
from topics.environment.keys import KeyClaims
from topics.types.completion import Completion, Medium
from topics.types.tokens import pack_ids
from topics.types.trajectory import Trajectory

KEY = KeyClaims("t.0", 1, "c", expires_at=2**31, issued_at=0, namespace="polar")
PLACEHOLDER, USER, MODEL, END, HEADER = 200, 201, 202, 203, 204
RED, BLUE = b"red", b"blue"


def image(data: bytes) -> ImagePart:
    return ImagePart(ImageUrl(f"data:image/png;base64,{b64encode(data).decode()}"))


def user(text: str, *images: bytes) -> Message:
    return Message("user", [TextPart(text), *map(image, images)])


def kept_in(blobs: BlobStore | None) -> PromptMedia:
    return PromptMedia(BlobWriter(blobs), ProxyMetrics())


UNSTORED = kept_in(None)


class Rendering(NamedTuple):
    ids: list[int]
    positions: list[int]
    """Of the images."""
    content: list[Any]
    """The ids, with the URL of an image in place of its first placeholder."""


def rendered(messages: Sequence[Message], header: int = 0) -> Rendering:
    """`header`: the length of what stands first, as tools do."""
    ids: list[int] = [HEADER] * header
    content: list[Any] = [*ids]
    positions: list[int] = []
    for message in messages:
        ids.append(MODEL if message.role == "assistant" else USER)
        parts = message.content if isinstance(message.content, list) else [TextPart(message.content or "")]
        content += ids[len(content) :]
        for part in parts:
            if not isinstance(part, TextPart):
                positions.append(len(ids))
                ids += [PLACEHOLDER] * 2
                content += [part.url, PLACEHOLDER]
            else:
                ids += map(ord, part.text)
                content += map(ord, part.text)
        ids.append(END)
        content.append(END)
    return Rendering([*ids, MODEL], positions, [*content, MODEL])


@dataclass
class Session:
    """A claim, and what it wrote to its log."""

    has_positions: bool
    media: PromptMedia = field(default_factory=lambda: UNSTORED)
    claim: ClaimState = field(default_factory=lambda: ClaimState(KEY))
    log: list[Completion] = field(default_factory=list)

    async def ask(self, messages: list[Message], text: str, header: int = 0) -> Completion:
        prompt, message = rendered(messages, header), Message("assistant", text)
        sampled = [*map(ord, text), END]
        answer = Answer(
            message, "stop", Usage(len(prompt.ids), len(sampled)), pack_ids(prompt.ids), pack_ids(sampled), b"\0" * 4 * len(sampled), "m",
            media_positions=tuple(prompt.positions) if self.has_positions else None,
        )  # fmt: skip
        request, spelled = ChatRequest(messages), transcript(Spelled(messages), [])
        spec = CallSpec(f"c{len(self.log)}", self.claim, "openai_chat", "default", request, spelled, len(self.log))
        media = await self.media.of(request, spelled, self.claim.history, answer, Batch())
        self.log.append(answered_record(spec, answer, media))
        self.claim.add(LoggedCall(self.log[-1], messages, spelled, message), answer.prompt_ids, media)
        return self.log[-1]

    def media_of(self, record: Completion) -> list[Medium]:
        """The media of a call's whole prompt, as the builder reads them from the log."""
        [found] = [
            placed.media
            for placed in place_calls(self.log, frozenset())
            if isinstance(placed, PlacedCall) and placed.call is record
        ]
        return list(found)

    def built(self) -> Trajectory:
        return PrefixMerging().build(BuiltFrom(build_record(), self.log, frozenset()))


class Turn(NamedTuple):
    onto: int
    """The earlier call, by age."""
    dropped: int
    """Messages left out at its end."""
    swaps: bool
    """Its red images are blue now."""
    edits: bool
    """Its answers are others now."""
    said: list[Message]
    answer: str
    header: int = 0


SAID = st.builds(
    lambda text, images: user(text, *images), st.sampled_from("xy"), st.lists(st.sampled_from([RED, BLUE]), max_size=2)
)
TURNS = st.lists(
    st.builds(
        Turn,
        st.integers(0, 3),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from([False, False, True]),
        st.sampled_from([False, False, False, True]),
        st.lists(SAID, min_size=1, max_size=2),
        st.sampled_from(["one", "on"]),
        st.sampled_from([0, 0, 0, 3]),
    ),
    min_size=1,
    max_size=7,
)


def conversations(turns: Sequence[Turn]) -> list[tuple[list[Message], str, int]]:
    """The messages of each call, its answer and its header."""
    found: list[tuple[list[Message], str, int]] = []
    for turn in turns:
        before: list[Message] = []
        if found:
            messages, answer, _ = found[-1 - turn.onto % len(found)]
            before = [*messages, Message("assistant", answer)]
            before = before[: len(before) - turn.dropped]
        if turn.swaps:
            before = [swapped(message) for message in before]
        if turn.edits:
            before = [Message("assistant", "edited") if message.role == "assistant" else message for message in before]
        found.append(([*before, *turn.said], turn.answer, turn.header))
    return found


def swapped(message: Message) -> Message:
    if not isinstance(message.content, list):
        return message
    return Message(message.role, [image(BLUE) if part == image(RED) else part for part in message.content])


def lived(turns: Sequence[Turn], has_positions: bool) -> tuple[Session, list[list[Any]], list[list[Any]]]:
    """A session, and by call what its prompt, and its prompt and answer, really were."""
    session = Session(has_positions)

    async def all_asked() -> None:
        for call in conversations(turns):
            await session.ask(*call)

    asyncio.run(all_asked())
    calls = conversations(turns)
    read = [rendered(messages, header).content for messages, _, header in calls]
    whole = [[*content, *map(ord, answer), END] for content, (_, answer, _) in zip(read, calls, strict=True)]
    return session, read, whole


@settings(deadline=None, max_examples=50)
@given(TURNS, st.booleans())
def test_no_token_is_trained_after_other_images_than_it_was_sampled_after(
    turns: list[Turn], has_positions: bool
) -> None:
    session, read, whole = lived(turns, has_positions)
    trajectory = session.built()
    for trace in trajectory.expanded():
        leaf = trajectory.nodes[trace.trace.leaf].call
        assert leaf is not None
        for span in trace.spans:
            prompt = read[int(span.call.call_id[1:])]
            assert whole[leaf][: len(prompt)] == prompt


@settings(deadline=None, max_examples=50)
@given(TURNS, st.booleans())
def test_no_token_before_the_place_of_an_image_depends_on_it(turns: list[Turn], has_positions: bool) -> None:
    session, *_ = lived(turns, has_positions)
    for record, (messages, _, header) in zip(session.log, conversations(turns), strict=True):
        places, bounds = rendered(messages, header).positions, [one.position or 0 for one in session.media_of(record)]
        assert bounds == places if has_positions else all(map(le, bounds, places))


@settings(deadline=None, max_examples=50)
@given(TURNS)
def test_where_the_engine_tells_places_every_prompt_continues_what_it_repeats(turns: list[Turn]) -> None:
    session, read, whole = lived(turns, has_positions=True)
    for index, call in enumerate(session.built().calls):
        fits = [(len(whole[at]), at) for at in range(index) if read[index][: len(whole[at])] == whole[at]]
        assert call.parent == (f"c{max(fits)[1]}" if fits else None)


@pytest.mark.parametrize("has_positions", [True, False])
@given(saying=st.lists(st.lists(st.sampled_from([RED, BLUE]), max_size=2), min_size=1, max_size=5))
@settings(deadline=None, max_examples=50)
def test_a_conversation_that_only_grows_is_one_trace(saying: list[list[bytes]], has_positions: bool) -> None:
    session, _, whole = lived([Turn(0, 0, False, False, [user("x", *found)], "one") for found in saying], has_positions)
    [trace] = session.built().expanded()
    assert len(trace.spans) == len(saying)
    assert trace.token_ids.tolist() == [PLACEHOLDER if isinstance(one, str) else one for one in whole[-1]]


@settings(deadline=None, max_examples=50)
@given(TURNS, st.booleans())
def test_a_new_owner_knows_the_images_of_the_log(turns: list[Turn], has_positions: bool) -> None:
    session, *_ = lived(turns, has_positions)
    now = ClaimState(KEY)
    now.take_over(ClaimLog(session.log, frozenset(), 0, is_over=False))
    again = Session(has_positions, claim=now)
    for call, record in zip(conversations(turns), session.log, strict=True):
        before = recorded_again(session, *call)
        assert recorded_again(again, *call) == before
        assert [one.digest for one in before] == [one.digest for one in session.media_of(record)]
        assert now.history.media(record.call_id) == session.claim.history.media(record.call_id)


def recorded_again(session: Session, messages: list[Message], text: str, header: int) -> list[Medium]:
    prompt = rendered(messages, header)
    positions = tuple(prompt.positions) if session.has_positions else None
    answer = Answer(
        Message("assistant", text), "stop", Usage(1, 1), pack_ids(prompt.ids), b"", b"", "m", media_positions=positions
    )
    spelled = transcript(Spelled(messages), [])

    async def placed() -> list[Medium]:
        return await session.media.of(ChatRequest(messages), spelled, session.claim.history, answer, Batch())

    return asyncio.run(placed())


async def test_two_calls_that_differ_in_an_image_alone_are_two_prompts_and_each_goes_on() -> None:
    for has_positions in (True, False):
        session = Session(has_positions)
        for one in (RED, BLUE):
            await session.ask([user("x", one)], "one")
        for one in (RED, BLUE):
            await session.ask([user("x", one), Message("assistant", "one"), user("y")], "two")
        trajectory = session.built()
        assert [call.parent for call in trajectory.calls] == [None, None, "c0", "c1"]
        assert [len(trace.spans) for trace in trajectory.expanded()] == [2, 2]


async def test_without_places_a_prompt_that_begins_otherwise_names_no_place() -> None:
    session, talk = Session(has_positions=False), [user("x")]
    answer = Message("assistant", "one")
    await session.ask(talk, "one", 3)
    talk += [answer, user("y", RED)]
    first = await session.ask(talk, "one", 3)
    assert [one.position for one in first.media] == [len(rendered([user("x"), answer], 3).ids) - 1]
    talk += [answer, user("z", BLUE)]
    assert [one.position for one in session.media_of(await session.ask(talk, "one"))] == [None, None]


async def test_without_places_a_prompt_that_lacks_an_image_of_the_call_that_it_repeats_names_no_place() -> None:
    session = Session(has_positions=False)
    await session.ask([user("x"), user("y", RED)], "one")
    other = await session.ask([user("x"), user("y", BLUE)], "one")
    assert [one.position for one in other.media] == [None]


async def test_an_image_is_stored_once_and_named_by_the_call_that_brings_it(tmp_path: Path) -> None:
    class Counted(FolderBlobs):
        puts = 0

        def put(self, data: bytes) -> BlobRef:
            self.puts += 1
            return super().put(data)

    blobs = Counted(tmp_path)
    session = Session(has_positions=True, media=kept_in(blobs))
    first = await session.ask([user("x", RED)], "one")
    second = await session.ask([user("x", RED), Message("assistant", "one"), user("y", BLUE)], "two")
    assert (first.media, second.media) == (session.media_of(second)[:1], session.media_of(second)[1:])
    for record, data in ((first, RED), (second, BLUE)):
        [one] = record.media
        assert (one.media_type, one.digest) == ("image/png", sha256(data).hexdigest())
        assert blobs.get(one.blob or "") == data
    assert blobs.puts == 2


@pytest.mark.parametrize("has_positions", [True, False])
async def test_a_conversation_writes_each_image_once(has_positions: bool) -> None:
    session, talk, calls = Session(has_positions), list[Message](), 100
    for number in range(calls):
        talk.append(user("x", b"%d" % number))
        await session.ask(list(talk), "one")
        talk.append(Message("assistant", "one"))
    assert [len(record.media) for record in session.log] == [1] * calls
    trajectory = session.built()
    assert [call.media for call in trajectory.calls] == list(range(1, calls + 1))
    assert sum(len(node.media) for node in trajectory.nodes) == calls


async def test_without_a_store_the_digest_alone_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for media in (UNSTORED, kept_in(FolderBlobs(tmp_path / "file"))):
        call = await Session(has_positions=True, media=media).ask([user("x", RED)], "one")
        assert call.media == [Medium(sha256(RED).hexdigest(), position=2, media_type="image/png")]


async def test_a_sound_is_recorded_as_one_and_is_no_image_of_the_same_bytes(tmp_path: Path) -> None:
    sound = AudioPart(AudioUrl(f"data:audio/wav;base64,{b64encode(RED).decode()}"))
    session = Session(has_positions=True, media=kept_in(FolderBlobs(tmp_path)))
    seen, heard = [await session.ask([Message("user", [TextPart("x"), part])], "one") for part in (image(RED), sound)]
    assert [(one.kind, one.media_type, one.position) for one in heard.media] == [("audio", "audio/wav", 2)]
    assert heard.media[0].blob == seen.media[0].blob
    assert [call.branch for call in session.built().calls] == ["root", "media"]


@pytest.mark.parametrize(
    "url",
    [
        "https://images.example.org/a.png",
        "data:image/png,red",
        "data:image/png;base64,ä",
        "data:image/png;base64,AAAA#BBBB",
        "data:",
    ],
)
async def test_an_image_whose_bytes_the_proxy_doesnt_have_is_unproven_and_masks_the_call(url: str) -> None:
    session = Session(has_positions=True)
    call = await session.ask([Message("user", [ImagePart(ImageUrl(url))])], "one")
    assert call.media == [Medium(sha256(url.encode()).hexdigest(), position=1, unproven=True)]
    assert session.built().stats.masked_tokens == {"media_unknown": 4}


@pytest.mark.parametrize(
    ("media_type", "recorded"), [("image/" + "x" * 58, True), ("image/" + "x" * 59, False), ("a b", False)]
)
def test_a_media_type_that_is_none_isn_t_recorded(media_type: str, recorded: bool) -> None:
    """It stands in each trajectory, and an agent chooses it."""
    session = Session(has_positions=True)
    picture = ImagePart(ImageUrl(f"data:{media_type};base64,{b64encode(RED).decode()}"))
    [medium] = asyncio.run(session.ask([Message("user", [picture])], "one")).media
    assert (medium.digest, medium.media_type) == (sha256(RED).hexdigest(), media_type if recorded else None)
