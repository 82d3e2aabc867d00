"""Writes what is derived: the types from docs/openapi.json, and the package `sync` from `aio`.

`generate.py --check` writes nothing and exits 1 if a file is not as it would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from derive_sync import derive
from generate_models import generate, generate_codes

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "atoll_sandbox"


def derived() -> dict[Path, str]:
    """Every derived file and its text."""
    files = {PACKAGE / "generated" / "models.py": generate(), PACKAGE / "generated" / "codes.py": generate_codes()}
    for path in sorted((PACKAGE / "aio").glob("*.py")):
        files[PACKAGE / "sync" / path.name] = derive(path.name, path.read_text())
    return files


def stale() -> list[Path]:
    """Files that are not as they would be written, and files of `sync` that nothing derives."""
    files = derived()
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return wrong + [path for path in sorted((PACKAGE / "sync").glob("*.py")) if path not in files]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for path in stale():
            print(f"not up to date: {path}; run scripts/generate.py", file=sys.stderr)
        return 1 if stale() else 0
    for path in stale():
        text = derived().get(path)
        path.unlink() if text is None else path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
