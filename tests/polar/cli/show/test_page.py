"""How stories are drawn: nothing of anyone's text steers the terminal, nothing is lost unsaid."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from polar.cli.output import print_json
from polar.cli.show.overview import draw_artifacts, draw_calls, draw_head, draw_traces, in_tree_order
from polar.cli.show.page import LINE, Page, duration, shorten
from polar.cli.show.refused import counted, draw_refused, summary
from polar.cli.show.tokens import draw_tokens
from polar.cli.show.transcript import draw_call, draw_transcript
from polar.show.assembly import Log, assemble
from polar.show.document import document
from polar.show.story import Story
from proxy.chat import Message
from tests.polar.show.recording import TASK, Recording, a_session, calls_tool, row, says
from topics.completions import FIRST_REFUSED, Open, RefusedRequest
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.types.completion import CallError
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Status

NOWHERE = Settings(data=Path("nowhere"))
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def story(recording: Recording, *, ended: bool = True, **more: Any) -> Story:
    log = Log(None).take(Open("t.0", 1, "claim"), 0)
    for record in recording.calls:
        log = log.take(record, 0)
    trajectory = recording.build(error=more.get("error")) if ended else None
    return assemble(TASK, row(log_offset=0, **more), log, trajectory)


def one_call(call_id: str, text: str) -> Recording:
    recording = Recording()
    recording.call(call_id, [says("user", text)], says("assistant", "done"))
    return recording


def drawn(told: Story, *, is_full: bool = False, terminal: bool = False, width: int = 100) -> str:
    """All sections, as they come out."""
    out = io.StringIO()
    colours: Any = {"force_terminal": True, "color_system": "standard"} if terminal else {}
    page = Page(is_full=is_full, console=Console(file=out, width=width, **colours))
    draw_head(page, told)
    draw_calls(page, told)
    draw_refused(page, told.refused)
    draw_transcript(page, told)
    draw_tokens(page, told, NOWHERE)
    draw_traces(page, told)
    draw_artifacts(page, told, blob_store.of(NOWHERE), "polar show t.0")
    for call in told.calls:
        draw_call(page, told, call)
    return out.getvalue()


def section(text: str, name: str) -> str:
    """What stands below a heading, up to the next."""
    return text.split(f"\n{name}\n")[1].split("\nCalls\n")[0].split("\nTokens\n")[0].split("\nTraces\n")[0]


def hostile(text: str) -> Story:
    """A session with this text wherever someone else's text may stand."""
    recording = Recording()
    asked = [says("system", text), says("user", text)]
    tool = calls_tool(text or "x", json.dumps({text: text}), tool_call_id=text, reasoning=text)
    recording.call("a", asked, tool, tools=(text,), model_served=text, lineage={"thread": text}, kind_rule=text)
    recording.call(
        "b", [*asked, tool, says("tool", text, tool_call_id=text)], calls_tool("f", text), model_requested=text
    )
    recording.failed("c", asked, CallError(text, text, 500))
    error = SessionError("run", Kind.AGENT, "exit_code", text)
    told = story(recording, error=error, artifacts={text: f"blob:{text}"})
    told.refused.append(RefusedRequest("t.0", 1, "claim", 0, text, text, 404, "not_found", text, text))
    return told


def escapes(out: str) -> list[str]:
    """Each ESC with what belongs to it."""
    assert "\x9b" not in out
    return [part.partition("m")[0] for part in out.split("\x1b")[1:]]


@given(ANY)
@examples(max_examples=60, deadline=None)
def test_nothing_of_anyones_text_steers_a_pipe_a_terminal_or_json_which_holds_it_all(text: str) -> None:
    told = hostile(text)
    assert not any(
        (ord(char) < 0x20 and char != "\n") or 0x7F <= ord(char) < 0xA0 or char in "\u202e\u2028"
        for char in drawn(told)
    )
    ours = escapes(drawn(hostile("x"), terminal=True))
    assert set(escapes(drawn(told, terminal=True))) <= set(ours), "the only escapes are our own colours"
    with redirect_stdout(StringIO()) as printed:
        print_json(document(told, NOWHERE, with_texts=True))
    out = printed.getvalue()
    assert out.isascii()
    assert out.replace("\n", "").isprintable()
    assert {"role": "user", "content": text} in [one["message"] for one in json.loads(out)["messages"]]


def refusals(number: int) -> list[RefusedRequest]:
    return [
        RefusedRequest(
            "t.0", 1, "claim", 1000 * n, "POST", f"/foo{n}", 404, "not_found", f"nothing is served at POST /foo{n}"
        )
        for n in range(number)
    ]


def test_the_last_refused_requests_are_shown_with_their_number() -> None:
    out = StringIO()
    page = Page(console=Console(file=out, width=120))
    draw_refused(page, [])
    assert out.getvalue() == ""
    draw_refused(page, refusals(7))
    lines = out.getvalue().splitlines()
    assert lines[1:3] == [
        "Refused requests",
        "  the proxy refused 7 requests; these are the last 5 on the log",
    ]
    assert [line.split()[:4] for line in lines[-5:]] == [
        [f"1970-01-01T00:00:0{n}Z", "POST", f"/foo{n}", "404"] for n in range(2, 7)
    ]
    assert lines[-1].endswith("nothing is served at POST /foo6")


def test_one_line_says_how_many_requests_were_refused_and_the_last() -> None:
    assert summary(refusals(1)) == "the proxy refused 1 request: POST /foo0 got 404, nothing is served at POST /foo0"
    assert summary(refusals(3)).startswith("the proxy refused 3 requests, the last: POST /foo2 got 404, nothing")
    many = [*refusals(FIRST_REFUSED), replace(refusals(1)[0], requests=FIRST_REFUSED, message="x\n" * 150)]
    assert summary(many).startswith("the proxy refused at least 40 requests, the last: POST /foo0 got 404, x\\nx")
    assert len(summary(many)) < 500


def test_a_number_is_exact_as_long_as_each_request_has_a_record() -> None:
    assert counted(refusals(FIRST_REFUSED)) == "the proxy refused 20 requests"
    assert counted(refusals(FIRST_REFUSED + 1)) == "the proxy refused at least 21 requests"
    assert counted([replace(refusals(1)[0], requests=10)]) == "the proxy refused at least 10 requests"


def test_markup_and_emoji_codes_are_text() -> None:
    out = drawn(hostile("[bold red]x[/] :warning: [/nonsense]"))
    assert "[bold red]x[/] :warning: [/nonsense]" in out


def test_the_transcript_tells_each_message_once_and_where_it_branches() -> None:
    out = section(drawn(story(a_session())), "Transcript")
    for once in ("be brief", "mend it", "first look around", "mended again", "looked", "mended\n"):
        assert out.count(f" {once}") == 1, once
    assert "1 system\n    be brief\n" in out
    assert "3 assistant  call 1, +0 ms, 2 tokens, stop\n    reasoning:\n        first look around\n" in out
    assert "    → bash\n        command: \n            ls\n            -la\n" in out
    assert "tool  bash\n    file 0\n" in out
    assert "── call 4 branches from message 2 (edited_history) ──" in out
    assert "assistant  worded by the harness: no call sampled this\n    looked" in out
    assert "    ✗ call 5 failed after 10 ms: bad_engine (HTTP 500)\n        it fell over\n" in out
    assert "side calls aren't shown here: 2 (title); --call N shows one" in out
    assert "a title" not in out


def test_what_a_tool_wrote_is_shortened_and_counted_unless_all_is_asked_for() -> None:
    out = section(drawn(story(a_session())), "Transcript")
    assert "    file 7\n    … 88 lines, 701 characters omitted (--full shows them) …\n    file 96\n" in out
    whole = section(drawn(story(a_session()), is_full=True), "Transcript")
    assert all(f"    file {n}\n" in whole for n in range(100))


@given(st.text(st.sampled_from("ab\n"), max_size=60).map(lambda text: text * 40), st.integers(3, 20))
def test_what_is_left_out_and_what_is_not_are_the_text(text: str, lines: int) -> None:
    head, left, tail = shorten(text, lines)
    assert head + left + tail == text
    kept = f"{head}\n{tail}" if left else head
    assert kept.count("\n") <= lines
    assert len(kept) <= lines * LINE + 1


def test_calls_stand_in_tree_order_branches_before_what_goes_on() -> None:
    recording = Recording()
    asked = [says("user", "go")]
    for call_id, prompt, sampled in [
        ("a", "p", "one"),
        ("b", "p one q", "two"),
        ("c", "p one r", "three"),
        ("d", "p one r three s", "four"),
        ("e", "p one r three s", "five"),
        ("other", "elsewhere", "six"),
    ]:
        recording.call(call_id, asked, says("assistant", call_id), prompt=prompt, sampled=sampled)
    order = [(call.call.call_id, depth) for call, depth in in_tree_order(story(recording).calls)]
    assert order == [("a", 0), ("b", 1), ("c", 0), ("d", 1), ("e", 0), ("other", 0)]
    table = section(drawn(story(recording), width=200), "Calls").splitlines()
    rows = [line.split() for line in table if "answered" in line]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row[-1] for row in rows] == ["a", "b", "c", "d", "e", "other"]


def test_a_table_says_nothing_of_what_no_call_has() -> None:
    recording = one_call("a", "go")
    head = section(drawn(story(recording), width=200), "Calls").splitlines()[0].split()
    assert head == ["call", "kind", "outcome", "branch", "prompt", "shared", "sampled", "latency", "finish", "id"]
    recording.call("b", [says("user", "go")], calls_tool("bash", "{}"), policy_version=7)
    head = section(drawn(story(recording), width=200), "Calls").splitlines()[0].split()
    assert "policy" in head
    assert " ".join(head).endswith("tools called id")


def test_a_narrow_terminal_does_without_ids_and_a_row_stays_a_line() -> None:
    recording = one_call("an-id-of-forty-characters-and-some-more-yet", "go")
    for width, has_id in ((80, False), (160, True)):
        lines = drawn(story(recording), terminal=True, width=width).split("Transcript")[0].splitlines()
        (line,) = [line for line in lines if "answered" in line and "main" in line]
        assert ("an-id-of-forty-characters-and-some-more-yet" in line) is has_id


def test_tools_called_are_tallied() -> None:
    recording = Recording()
    calls = [*calls_tool("bash", "{}").tool_calls, *calls_tool("edit", "{}").tool_calls * 3]
    recording.call("a", [says("user", "go")], Message("assistant", None, tool_calls=calls))
    assert "bash, edit ×3" in section(drawn(story(recording), width=200), "Calls")


def test_tokens_are_marked_as_trained_or_why_not_and_shared_ones_told_once() -> None:
    out = section(drawn(story(a_session())), "Tokens")
    assert "⟦trained⟧  ⟨sampled, not trained⟩  read" in out
    assert out.count("token ids, because their text isn't available: POLAR_CONTROL_URL isn't set") == 1
    assert "2 tokens from 4, sampled by call 1, logprob min -" in out
    assert out.count("⟦") == 1 + 3
    assert out.count("its first 4 tokens stand in a trace above") == 1


def test_the_head_tells_how_it_ended_and_where_time_went() -> None:
    spent = Accounting(init_queued_ms=120, init_ms=1_500, run_queued_ms=0, run_ms=252_000, evaluate_ms=3_840_000)
    error = SessionError("run", Kind.AGENT, "exit_code", "ended with 3")
    told = story(a_session(), status=Status.FAILED, accounting=spent, error=error, exit_code=3, reward=None)
    out = drawn(told).split("\nCalls\n")[0]
    assert out.startswith(
        "t.0  FAILED  no reward\n  task t, sample 0 of 2, harness shell, builder prefix_merging, mode train, attempt 1\n"
    )
    assert "run agent/exit_code:\n    ended with 3\n" in out
    assert "time: init 1.5 s (queued 120 ms), run 4 min 12 s (queued 0 ms), evaluate 1 h 04 min (queued 0 ms)\n" in out
    assert "calls: 4 answered, 1 failed; 7 tokens sampled, 6 of them trainable in 2 traces\n" in out


def test_the_head_names_an_opened_session_and_its_client() -> None:
    recording = a_session()
    recording.calls = [replace(call, client="claude-cli/2.1.329 (external, cli)") for call in recording.calls]
    out = drawn(story(recording, label="try 2")).split("\nCalls\n")[0]
    assert "mode train, label try 2, attempt 1\n  client claude-cli/2.1.329 (external, cli)\n" in out


@pytest.mark.parametrize("ended", [True, False])
def test_a_call_without_an_answer_stands_with_its_error(ended: bool) -> None:
    text = drawn(story(a_session(), ended=ended), width=200)
    header, *rows = section(text, "Calls").split("\nTranscript\n")[0].splitlines()
    at = header.index("error")
    assert [row[at:].split()[0] for row in rows if " failed " in row] == ["bad_engine"]


def test_colours_are_on_a_terminal_alone_and_none_where_they_are_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = story(a_session())
    assert "\x1b[32m" in drawn(told, terminal=True)
    assert "\x1b" not in drawn(told)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not {"\x1b[32m", "\x1b[31m", "\x1b[33m"} & {f"\x1b{one}m" for one in escapes(drawn(told, terminal=True))}


def test_wide_text_wraps_on_a_terminal_and_stays_a_line_in_a_pipe() -> None:
    recording = one_call("a", "word " * 100)
    assert max(map(len, section(drawn(story(recording)), "Transcript").splitlines())) > 400
    wrapped = drawn(story(recording), terminal=True, width=60).splitlines()
    text = [line for line in wrapped if line.startswith("    word")]
    assert len(text) >= 8
    assert max(map(len, text)) <= 60


@pytest.mark.parametrize(
    ("ms", "said"),
    [(340, "340 ms"), (12_345, "12.3 s"), (59_999, "60.0 s"), (252_000, "4 min 12 s"), (3_840_000, "1 h 04 min")],
)
def test_durations_are_told_in_words(ms: int, said: str) -> None:
    assert duration(ms) == said
