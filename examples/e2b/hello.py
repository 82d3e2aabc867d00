"""A first sandbox: run a command, look at what came back, end it. Runs on E2B's cloud and on Atoll alike."""

from e2b import Sandbox

sandbox = Sandbox.create(metadata={"example": "hello"}, timeout=120)
try:
    result = sandbox.commands.run('echo "hello from $(uname -s), I am $(whoami)"')
    print(result.stdout, end="")
    assert result.exit_code == 0 and "I am user" in result.stdout
finally:
    sandbox.kill()
