"""Another name of the coding CLI `dcode`, for the command lines of guides: `python -m deepagents_cli --sandbox none`."""

from __future__ import annotations

import sys

# Commands that are below another one today.
MOVED = {"reset": ["agents", "reset"], "list": ["agents", "list"]}
MISSING = "the package deepagents-code is missing: pip install deepagents-code 'atoll-sandbox[deepagents]'"


def today(arguments: list[str]) -> list[str]:
    """The arguments as `dcode` takes them."""
    first, rest = arguments[:1], arguments[1:]
    return [*(MOVED.get(first[0], first) if first else []), *rest]


def main() -> None:
    """Runs `dcode`."""
    try:
        from deepagents_code import cli_main
    except ImportError:
        sys.exit(MISSING)
    sys.argv[1:] = today(sys.argv[1:])
    cli_main()
