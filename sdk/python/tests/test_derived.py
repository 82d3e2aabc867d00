"""What is derived is as it would be derived now, and both clients have the same members."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import atoll_sandbox
from atoll_sandbox import daytona

HOME = Path(__file__).resolve().parents[1]


def test_derived_files_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, str(HOME / "scripts" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def members(kind: type) -> dict[str, str]:
    """The public methods of a class with their parameters."""
    return {
        name: str([str(p).replace("Async", "") for p in inspect.signature(value).parameters.values()])
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_and_parameters() -> None:
    pairs = [(atoll_sandbox, name) for name in ("Atoll", "Sandbox", "Process", "Terminal")]
    for module, name in [*pairs, (daytona, "Daytona"), (daytona, "Sandbox")]:
        blocking, asynchronous = getattr(module, name), getattr(module, f"Async{name}")
        assert members(blocking) == members(asynchronous)
        assert members(blocking)


def test_everything_that_is_exported_exists() -> None:
    assert all(hasattr(atoll_sandbox, name) for name in atoll_sandbox.__all__)


def test_an_import_stays_cheap_and_needs_no_http_library() -> None:
    program = "import sys, atoll_sandbox; print('httpx' in sys.modules, 'pydantic' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]
