"""The section of `--tokens`: each trace as runs of trained and other tokens, as text if the engine detokenizes, otherwise as ids."""

from __future__ import annotations

import numpy as np

from polar.cli.show.page import INDENT, Page
from polar.show.detokenize import detokenize
from polar.show.runs import Run, runs
from polar.show.story import Story
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.trajectory import Trace, Trajectory

LINES = 24
TRAINED, NOT_TRAINED, READ = "green", "yellow", "dim"


def draw_tokens(page: Page, story: Story, settings: Settings) -> None:
    """All traces. Tokens that several traces share are shown with the first."""
    page.heading("Tokens")
    trajectory = story.trajectory
    if trajectory is None or not trajectory.traces:
        page.line("no traces" if trajectory else "not out", indent=2)
        return
    page.line(("⟦trained⟧", TRAINED), "  ", ("⟨sampled, not trained⟩", NOT_TRAINED), "  ", ("read", READ), indent=2)
    texts = _Texts(settings, page)
    for trace in trajectory.traces:
        _draw_trace(page, story, trajectory, trace, texts)


class _Texts:
    """Runs as text. After the first failure as ids, with the reason printed once."""

    def __init__(self, settings: Settings, page: Page) -> None:
        self._settings = settings
        self._page = page
        self._has_failed = False

    def of(self, found: list[Run]) -> list[str]:
        if not self._has_failed:
            try:
                return detokenize(self._settings, [run.ids for run in found])
            except NotReadyError as why:
                self._has_failed = True
                self._page.line((f"token ids, because their text isn't available: {why}", "yellow"), indent=2)
        return [" ".join(map(str, run.ids.tolist())) for run in found]


def _draw_trace(page: Page, story: Story, trajectory: Trajectory, trace: Trace, texts: _Texts) -> None:
    found = runs(trajectory, trace)
    total = sum(len(run.ids) for run in found)
    trained = sum(len(run.ids) for run in found if run.is_trained)
    page.line()
    page.line((trace.trace_id, "bold"), f"  {trace.kind}, {trained:,} of {total:,} tokens trained", indent=2)
    repeated = sum(len(run.ids) for run in found if run.is_repeated)
    if repeated:
        page.line(f"its first {repeated:,} tokens stand in a trace above", indent=INDENT)
    new = [run for run in found if not run.is_repeated]
    for run, text in zip(new, texts.of(new), strict=True):
        _draw_run(page, story, run, text)


def _draw_run(page: Page, story: Story, run: Run, text: str) -> None:
    style = TRAINED if run.is_trained else NOT_TRAINED if run.call_id else READ
    facts = [f"{len(run.ids):,} tokens from {run.start:,}"]
    facts += [f"sampled by call {story.number_of(run.call_id)}"] if run.call_id else ["read"]
    facts += [f"not trained: {run.why_not}"] if run.why_not else []
    if run.logprobs is not None and run.call_id:
        facts.append(f"logprob min {np.min(run.logprobs):.3f}, mean {np.mean(run.logprobs):.3f}")
    page.line((", ".join(facts), "dim"), indent=INDENT)
    opened, closed = ("⟦", "⟧") if run.is_trained else ("⟨", "⟩") if run.call_id else ("", "")
    page.shortened(f"{opened}{text}{closed}", LINES, indent=2 * INDENT, style=style)
