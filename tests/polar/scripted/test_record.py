"""The record across restarts."""

from pathlib import Path

from polar.scripted.record import CALLS_IN_MEMORY, Record, Sampled


def sampled(call: int, session_id: str | None = None) -> Sampled:
    """A call of that number."""
    return Sampled(
        call=call,
        request_id="chatcmpl-x",
        session_id=session_id,
        model="m",
        script=None,
        stream=False,
        parameters={},
        prompt_token_ids=[0],
        token_ids=[2],
        logprobs=[-0.5],
        text="<|im_end|>",
        finish_reason="stop",
        outcome="completed",
        fault=None,
    )


def test_a_new_process_goes_on_with_the_file_and_drops_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    with Record(file) as record:
        record.append(sampled(record.next_call(), "a"))
        record.append(sampled(record.next_call(), "b"))
        assert len(file.read_bytes().splitlines()) == 2
    with file.open("ab") as torn:
        torn.write(b'{"call": 3, "reque')
    with Record(file) as record:
        assert record.next_call() == 3
        record.append(sampled(3, "a"))
        assert [call.call for call in record.calls()] == [1, 2, 3]
        assert [call.call for call in record.calls("a")] == [1, 3]


def test_without_a_file_the_last_calls_are_kept() -> None:
    record = Record()
    for call in range(CALLS_IN_MEMORY + 2):
        record.append(sampled(call))
    calls = record.calls()
    assert len(calls) == CALLS_IN_MEMORY
    assert calls[0].call == 2
