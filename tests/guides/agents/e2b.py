"""The class of E2B: code that a model wrote, in the template for data."""

import asyncio

from sandbox_factory import E2BSandbox


async def main():
    sandbox = E2BSandbox()
    await sandbox.create(template="python-data-science")
    code = "values = [1, 2, 3]\nsum(values)"
    result = await sandbox.execute(code)
    assert result.text == "6", result
    assert (await sandbox.execute("values.append(4); sum(values)")).text == "10"
    await sandbox.delete()


asyncio.run(main())
