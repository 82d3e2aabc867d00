"""The same over the SDK's asynchronous half: many things at once."""

import asyncio
import unittest

from leap0 import AsyncLeap0Client, Leap0NotFoundError


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_several_sandboxes_live_at_once(self):
        client = AsyncLeap0Client()
        boxes = await asyncio.gather(*(client.sandboxes.create(memory=512, env_vars={"N": str(n)}) for n in range(4)))
        try:
            said = await asyncio.gather(*(box.process.execute(command='sleep 0.1; printf %s "$N"') for box in boxes))
            self.assertEqual([one.stdout for one in said], ["0", "1", "2", "3"])
            await asyncio.gather(*(box.filesystem.write_file(path="/tmp/n", content=box.id) for box in boxes))
            read = await asyncio.gather(*(box.filesystem.read_file(path="/tmp/n") for box in boxes))
            self.assertEqual(read, [box.id for box in boxes])
            connection = await boxes[0].pty.connect((await boxes[0].pty.create()).id)
            await connection.send("echo $((6*7))-$N\n")
            seen = b""
            while b"42-0" not in seen:
                seen += await asyncio.wait_for(connection.recv(), 20)
            await connection.close()
        finally:
            await asyncio.gather(*(box.delete() for box in boxes))
        with self.assertRaises(Leap0NotFoundError):
            await boxes[0].process.execute(command="true")
        await client.close()
