"""A chat back end for many users: each conversation has its own sandbox, found again by its thread and paused in between.

    ATOLL_API_KEY=… python chat_backend.py
"""

import asyncio
import uuid

from atoll_sandbox import AsyncAtoll, AsyncSandbox, ExhaustedError

RUN = uuid.uuid4().hex[:8]


class ChatBackend:
    """What a web server calls: one method per message. It keeps no state of its own, so any number of them can run."""

    def __init__(self, client: AsyncAtoll) -> None:
        self.client = client

    async def sandbox_of(self, user: str) -> AsyncSandbox:
        """The sandbox of a conversation: a thread has one at most, whoever asks first creates it."""
        return await self.client.sandboxes.create(
            thread=f"chat-{RUN}-{user}",
            memory_mib=256,
            network="deny-all",
            auto_pause_s=60,
            labels={"chat": RUN},
            on_exit="destroy",
        )

    async def message(self, user: str, code: str) -> str:
        """Runs what the model of this conversation wants to run."""
        try:
            sandbox = await self.sandbox_of(user)
        except ExhaustedError as error:
            return f"try again later: {error.hint}"
        done = await sandbox.code.run(code, timeout_s=30)
        return done.error.name if done.error else done.text or done.stdout.strip()

    async def end(self, user: str) -> None:
        """Ends a conversation, and its sandbox with it."""
        await self.client.threads.end(f"chat-{RUN}-{user}")


async def main() -> None:
    async with AsyncAtoll() as client:
        backend = ChatBackend(client)
        users = ["ada", "bob", "eve"]

        # Three users at once; two messages of one user reach the same sandbox.
        await asyncio.gather(*(backend.message(user, f"name = '{user}'") for user in users))
        for user in users:
            print(f"{user}:", await backend.message(user, "f'I am {name}'"))

        # No user sees the files of another.
        await backend.message("ada", "open('secret.txt', 'w').write('of ada'); None")
        print("eve reads ada's file:", await backend.message("eve", "open('secret.txt').read()"))

        # A conversation that rests costs no CPU; the next message goes on where it was.
        ada = await backend.sandbox_of("ada")
        print("ada rests:", (await ada.pause()).phase)
        print("ada is back:", await backend.message("ada", "name, open('secret.txt').read()"))

        # An endless loop of one user ends by itself and disturbs no other.
        done = await ada.code.run("while True: pass", timeout_s=1)
        print("endless loop:", "timed out" if done.timed_out else done)

        await asyncio.gather(*(backend.end(user) for user in users))
        left = [item.id async for item in client.sandboxes.list(labels={"chat": RUN})]
        print("sandboxes left:", len(left))


if __name__ == "__main__":
    asyncio.run(main())
