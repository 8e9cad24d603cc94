"""Draws text with a bitmap font."""

from pathlib import Path

FONT = Path(__file__).with_name("font.bin")
HEADER, HEIGHT = b"GLY1", 8


def load(data):
    """The rows of each letter, by letter. Raises ValueError for data that is no font."""
    if not data.startswith(HEADER):
        raise ValueError("no font: it doesn't begin with GLY1")
    body, size = data[len(HEADER) :], HEIGHT + 1
    return {chr(body[at]): list(body[at + 1 : at + size]) for at in range(0, len(body), size)}


def draw(text):
    """Eight lines, `#` for ink and `.` for none. Raises KeyError for a letter that the font lacks."""
    font = load(FONT.read_bytes())
    return ["".join(f"{font[letter][row]:08b}" for letter in text).translate({48: ".", 49: "#"}) for row in range(HEIGHT)]
