"""Reward curves as SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 30, 24, 46
COLOURS = ("#2f7ed8", "#d9792b", "#3a9b58", "#a04ab5", "#c43c4e", "#6b7a8f")
STEPS_A_TICK = 5
WINDOW = 5
"""Steps in a mean of the line."""


@dataclass(frozen=True)
class Curve:
    """A run's rewards, from 0 to 1."""

    name: str
    smooth: Sequence[float]
    """By step; the line."""
    raw: Sequence[float]
    """By step; the dots."""
    before: float
    after: float
    """Held out; the rings left and right."""


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and the `WINDOW - 1` before it, as far as there are."""
    return [fmean(values[max(0, at + 1 - WINDOW) : at + 1]) for at in range(len(values))]


def svg(curves: Sequence[Curve]) -> str:
    """A drawing of all curves on one pair of axes."""
    steps = max(len(curve.smooth) for curve in curves)
    body = [*_axes(steps)]
    for at, curve in enumerate(curves):
        body += _drawn(curve, COLOURS[at % len(COLOURS)], steps, at)
    style = "text{font:12px sans-serif;fill:#808890}.a{stroke:#808890;stroke-opacity:.35}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><style>{style}</style>'
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _x(step: float, steps: int) -> float:
    """Step 0 is before training, and what comes after the last stands at its right."""
    return LEFT + (WIDTH - LEFT - RIGHT) * step / (steps + 1)


def _y(reward: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - reward)


def _axes(steps: int) -> Iterator[str]:
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        yield f'<line class="a" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>'
    for step in range(0, steps + 1, STEPS_A_TICK):
        yield f'<text x="{_x(step, steps):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">updates</text>'
    yield f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">mean reward</text>'


def _drawn(curve: Curve, colour: str, steps: int, at: int) -> Iterator[str]:
    points = " ".join(f"{_x(step, steps):.1f},{_y(reward):.1f}" for step, reward in enumerate(curve.smooth, 1))
    yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for step, reward in enumerate(curve.raw, 1):
        yield f'<circle cx="{_x(step, steps):.1f}" cy="{_y(reward):.1f}" r="1.8" fill="{colour}" fill-opacity=".45"/>'
    for step, reward in ((0, curve.before), (steps + 1, curve.after)):
        yield f'<circle cx="{_x(step, steps):.1f}" cy="{_y(reward):.1f}" r="5" fill="none" stroke="{colour}" stroke-width="2"/>'
    y = _y(0.36) + 17 * at
    yield f'<line x1="{WIDTH - 236}" x2="{WIDTH - 212}" y1="{y - 4:.1f}" y2="{y - 4:.1f}" stroke="{colour}" stroke-width="2"/>'
    name = f"{curve.name}: held out {curve.before:.2f} → {curve.after:.2f}"
    yield f'<text x="{WIDTH - 206}" y="{y:.1f}">{escape(name)}</text>'
