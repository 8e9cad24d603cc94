"""The media of a prompt on the log: what a record lists, and what readers make of it and its base."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from topics.calls.media_marks import listed, place_of, whole
from topics.types.completion import Medium

MEDIA = st.lists(
    st.builds(
        Medium,
        st.sampled_from("ab"),
        st.sampled_from(["image", "audio"]),
        st.sampled_from([None, 0, 1, 2, 3]),
        blob=st.sampled_from([None, "x"]),
    ),
    max_size=5,
)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[Medium], int, list[Medium]]:
    """The media of a prompt, the tokens that it shares with its base, and the base's media. In the shared part both have the same, of which
    more may be known now. The places may be in any order."""
    base, new, shared = draw(MEDIA), draw(MEDIA), draw(st.integers(0, 4))
    media = [medium for medium in base if place_of(medium) < shared]
    if draw(st.booleans()):
        media = [
            draw(st.sampled_from([medium, replace(medium, blob="y", position=place_of(medium))])) for medium in media
        ]
    media += [medium for medium in new if place_of(medium) >= shared]
    order = draw(st.permutations(range(4))) if draw(st.booleans()) else range(4)
    return sorted(media, key=lambda medium: order[place_of(medium)]), shared, base


@settings(deadline=None)
@given(prompts(), st.booleans())
def test_the_media_of_a_prompt_come_back_from_its_record_and_its_base(
    prompt: tuple[list[Medium], int, list[Medium]], forgotten: bool
) -> None:
    """Also if the writer has forgotten the base's."""
    media, shared, base = prompt
    known: Sequence[Medium] = () if forgotten else base
    assert whole(listed(media, shared, known), shared, base) == media


def test_a_record_lists_what_its_base_does_not_have() -> None:
    first, second = Medium("a", position=1), Medium("b", position=9)
    assert listed([first, second], 5, [first]) == [second]
    assert listed([first], 5, [first, second]) == []
    assert whole([], 5, [first, second]) == [first]


def test_a_record_lists_all_if_one_of_the_shared_part_was_stored_since() -> None:
    first, second = Medium("a", position=1), Medium("b", position=2)
    now = [first, replace(second, blob="x")]
    assert listed(now, 5, [first, second]) == now


def test_a_record_that_lists_a_medium_in_the_shared_part_which_the_base_lacks_contradicts_it() -> None:
    first = Medium("a", position=1)
    assert whole([replace(first, digest="b")], 5, [first]) is None
    assert whole([first], 5, []) is None
    assert whole([replace(first, kind="audio")], 5, [first]) is None
