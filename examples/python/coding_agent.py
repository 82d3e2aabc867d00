"""A coding agent on a repository: fork the sandbox, try several patches at once, keep the one that passes the tests.

    ATOLL_API_KEY=… python coding_agent.py
"""

import asyncio

from atoll_sandbox import AsyncAtoll, AsyncSandbox

CODE = """
def median(numbers):
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
"""
TESTS = """
import unittest
from stats import median

class Median(unittest.TestCase):
    def test_odd(self): self.assertEqual(median([3, 1, 2]), 2)
    def test_even(self): self.assertEqual(median([4, 1, 2, 3]), 2.5)
    def test_empty(self): self.assertIsNone(median([]))

unittest.main(verbosity=0)
"""
OLD = "    return ordered[len(ordered) // 2]\n"
MIDDLE = "    half = len(ordered) // 2\n    return (ordered[half] + ordered[~half]) / 2\n"

# What a model proposes. Each patch is tried in a copy of the whole sandbox, so that none sees another's files.
PATCHES = {
    "round down": "    return ordered[(len(ordered) - 1) // 2]\n",
    "mean of the middle": MIDDLE,
    "mean, and None for nothing": "    if not ordered:\n        return None\n" + MIDDLE,
}


async def prepare(sandbox: AsyncSandbox) -> None:
    """A repository with a bug. In real life: `git.clone(url, "repo")`."""
    await sandbox.git.init("repo", branch="main")
    await sandbox.files.write("repo/stats.py", CODE.lstrip())
    await sandbox.files.write("repo/test_stats.py", TESTS.lstrip())
    await sandbox.git.add(["."], "repo")
    await sandbox.git.commit("add the median", "repo", author="Agent", email="agent@example.com")


async def attempt(copy: AsyncSandbox, patch: str) -> int:
    """Applies a patch in a copy; how many tests fail."""
    await copy.files.edit("repo/stats.py", (OLD, patch))
    done = await copy.commands.run("python3 test_stats.py", cwd="repo", timeout_s=60)
    failed = [line for line in done.stderr.splitlines() if line.startswith(("FAIL:", "ERROR:"))]
    return len(failed) if done.exit_code else 0


async def main() -> None:
    async with AsyncAtoll() as client, await client.sandboxes.create() as sandbox:
        await prepare(sandbox)
        copies = await sandbox.fork(len(PATCHES))
        results = await asyncio.gather(*(attempt(c, p) for c, p in zip(copies, PATCHES.values())))
        for name, failures in zip(PATCHES, results):
            print(f"{name}: {failures} failed")

        best = min(range(len(results)), key=results.__getitem__)
        winner = copies[best]
        await winner.git.add(["stats.py"], "repo")
        await winner.git.commit("fix the median", "repo", author="Agent", email="agent@example.com")
        print("kept:", list(PATCHES)[best])
        print([commit.message.strip() for commit in await winner.git.log("repo")])
        print("the original is unchanged:", OLD in await sandbox.files.read_text("repo/stats.py"))
        await asyncio.gather(*(copy.delete() for copy in copies))


if __name__ == "__main__":
    asyncio.run(main())
