"""The coding CLI by its name in guides. A stand-in shows what today's CLI is called with: the real one needs a terminal and a model."""

import os
import subprocess
import sys
from pathlib import Path

stand_in = Path("stand-in")
stand_in.mkdir()
(stand_in / "deepagents_code.py").write_text("import sys\ndef cli_main():\n    print(*sys.argv[1:])\n")
with_stand_in = {**os.environ, "PYTHONPATH": f"{stand_in.resolve()}:{os.environ['PYTHONPATH']}"}


def called(line, env):
    words = line.replace("python", sys.executable, 1).split()
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


for line, expected in (
    ("python -m deepagents_cli", ""),
    ("python -m deepagents_cli --auto-approve", "--auto-approve"),
    ("python -m deepagents_cli --sandbox none", "--sandbox none"),
    ("python -m deepagents_cli --auto-approve --sandbox none", "--auto-approve --sandbox none"),
    ("python -m deepagents_cli reset --agent coder", "agents reset --agent coder"),
):
    done = called(line, with_stand_in)
    assert (done.returncode, done.stdout.strip()) == (0, expected), (line, done)

# The package itself is reached too.
done = called("python -m deepagents_cli --version", dict(os.environ))
assert done.returncode == 0 and done.stdout.startswith("deepagents-code "), done
