"""Rules of Deep Agents for files: which are binary, which lines are shown, which names a glob matches. Pure."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

MAX_BINARY_BYTES = 500 * 1024
MAX_TEXT_BYTES = 500 * 1024
CUT = (
    "\n\n[Output was truncated due to size limits. "
    "Continue reading with a larger offset or smaller limit to inspect the rest of the file.]"
)
# Files that are shown to a model as what they are, not as text.
BINARY = frozenset(
    ".png .jpg .jpeg .gif .webp .heic .heif .mp4 .mpeg .mov .avi .flv .mpg .webm .wmv .3gpp "
    ".wav .mp3 .aiff .aac .ogg .flac .pdf .ppt .pptx".split()
)


class Page(NamedTuple):
    """Lines of a file."""

    text: str
    start: int
    lines: int
    total: int


def looks_binary(path: str) -> bool:
    """Whether the name says that the file is no text."""
    return posixpath.splitext(path)[1].lower() in BINARY


def window(text: str, offset: int, limit: int) -> Page | None:
    """Lines from `offset` (from 0), `limit` at most and no more than fits; `None` if no line was asked for."""
    if limit <= 0:
        return None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    chosen = lines[offset : offset + limit]
    room, whole = MAX_TEXT_BYTES - len(CUT), 0
    for line in chosen:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        whole += 1
    shown = "\n".join(chosen[:whole])
    if whole < len(chosen):
        # A line that alone is too long is cut, so that the next page goes on after it.
        shown = (shown or chosen[0].encode()[: MAX_TEXT_BYTES - len(CUT)].decode("utf-8", "ignore")) + CUT
        whole = max(whole, 1)
    return Page(shown, offset, whole, len(lines))


def glob_query(pattern: str, root: str, *, top_only: bool) -> str:
    """The pattern for the server, to which a leading slash means the whole path."""
    anchored = pattern.startswith("/") or (top_only and "/" not in pattern)
    if not anchored:
        return pattern
    literal = root.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]").replace("{", "[{]")
    return posixpath.join(literal, pattern.lstrip("/"))


def is_shown(path: str, pattern: str, root: str) -> bool:
    """Whether a match is shown: names with a leading dot only if the pattern asks for them."""
    wanted = [part for part in pattern.split("/") if part]
    if any(part.startswith(".") for part in wanted):
        return True
    inside = posixpath.relpath(path, root).split("/")
    hidden = inside[-1:] if "/" not in pattern else inside
    return not any(part.startswith(".") for part in hidden)
