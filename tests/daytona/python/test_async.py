"""The same by the asynchronous client: every noun once, and many at once."""

import asyncio
import unittest

from daytona import (
    AsyncDaytona,
    CreateSandboxFromSnapshotParams,
    CreateSecretParams,
    DaytonaBadRequestError,
    DaytonaError,
    DaytonaFileNotFoundError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    FileDownloadRequest,
    FileUpload,
    ListSandboxesQuery,
    SandboxState,
    SessionExecuteRequest,
    VolumeMount,
)
from daytona.common.pty import PtySize

from world import INTERPRETER, name


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        # The debugging that unittest switches on says much and slows everything.
        asyncio.get_running_loop().set_debug(False)
        self.there = AsyncDaytona()

    async def asyncTearDown(self):
        await self.there.close()

    async def box(self, **more):
        made = await self.there.create(CreateSandboxFromSnapshotParams(**more))
        self.addAsyncCleanup(self.remove, made.id)
        return made

    async def remove(self, ident):
        async with AsyncDaytona() as there:
            try:
                await (await there.get(ident)).delete()
            except DaytonaNotFoundError:
                pass

    async def test_a_life(self):
        box = await self.box(labels={"async": "1"})
        self.assertEqual((await box.process.exec("echo hi")).result, "hi\n")
        await box.stop()
        self.assertEqual(box.state, SandboxState.STOPPED)
        await box.start()
        self.assertEqual((await box.process.exec("echo again")).result, "again\n")
        await box.delete(wait=True)
        with self.assertRaises(DaytonaNotFoundError):
            await self.there.get(box.id)

    async def test_ten_at_once(self):
        boxes = await asyncio.gather(*(self.box(labels={"n": str(n)}) for n in range(10)))
        said = await asyncio.gather(*(box.process.exec(f"echo {n}; hostname") for n, box in enumerate(boxes)))
        self.assertEqual([s.result.split()[0] for s in said], [str(n) for n in range(10)])
        self.assertEqual(len({box.id for box in boxes}), 10)

    async def test_fifty_commands_at_once(self):
        box = await self.box()
        said = await asyncio.gather(*(box.process.exec(f"sleep 0.2; echo {n}") for n in range(50)))
        self.assertEqual([s.result for s in said], [f"{n}\n" for n in range(50)])

    async def test_files(self):
        box = await self.box()
        await box.fs.upload_file(b"\x00\xff", "/tmp/b")
        self.assertEqual(await box.fs.download_file("/tmp/b"), b"\x00\xff")
        await box.fs.upload_files([FileUpload(source=str(n).encode(), destination=f"/tmp/m/{n}") for n in range(20)])
        got = await box.fs.download_files([FileDownloadRequest(source=f"/tmp/m/{n}") for n in range(20)])
        self.assertEqual([g.result for g in got], [str(n).encode() for n in range(20)])
        await box.fs.create_folder("/tmp/new", "750")
        await box.fs.move_files("/tmp/b", "/tmp/new/b")
        self.assertEqual([f.name for f in await box.fs.list_files("/tmp/new")], ["b"])
        await box.fs.replace_in_files(["/tmp/m/7"], "7", "seven")
        self.assertEqual([(m.file, m.content) for m in await box.fs.find_files("/tmp/m", "seven")], [("/tmp/m/7", "seven")])
        self.assertEqual((await box.fs.search_files("/tmp/m", "1*")).files.__len__(), 11)
        await box.fs.set_file_permissions("/tmp/new/b", mode="600")
        self.assertEqual((await box.fs.get_file_info("/tmp/new/b")).permissions, "0600")
        await box.fs.delete_file("/tmp/new", recursive=True)
        with self.assertRaises(DaytonaFileNotFoundError):
            await box.fs.download_file("/tmp/new/b")

    async def test_streams_of_files(self):
        box = await self.box()
        await box.fs.upload_file_stream(b"q" * 2_000_000, "/tmp/q")
        total = 0
        async for chunk in await box.fs.download_file_stream("/tmp/q"):
            total += len(chunk)
        self.assertEqual(total, 2_000_000)

    async def test_sessions_and_their_logs(self):
        box = await self.box()
        await box.process.create_session("s")
        await box.process.execute_session_command("s", SessionExecuteRequest(command="cd /usr"))
        done = await box.process.execute_session_command("s", SessionExecuteRequest(command="pwd"))
        self.assertEqual(done.stdout, "/usr\n")
        began = await box.process.execute_session_command("s", SessionExecuteRequest(command="echo a; sleep 0.2; echo b >&2", run_async=True))
        out, err = [], []
        await box.process.get_session_command_logs_async("s", began.cmd_id, out.append, err.append)
        self.assertEqual(("".join(out), "".join(err)), ("a\n", "b\n"))
        self.assertEqual((await box.process.get_session_command("s", began.cmd_id)).exit_code, 0)
        await box.process.delete_session("s")
        self.assertEqual([s.session_id for s in await box.process.list_sessions() if s.session_id == "s"], [])

    async def test_a_terminal(self):
        box = await self.box()
        seen = b""
        got = asyncio.Event()

        async def take(data):
            nonlocal seen
            seen += data
            if b"val-42" in seen:
                got.set()

        handle = await box.process.create_pty_session(id="p", on_data=take, pty_size=PtySize(rows=33, cols=99))
        await handle.wait_for_connection()
        await handle.send_input("stty size; echo val-$((6*7))\n")
        await asyncio.wait_for(got.wait(), 60)
        self.assertIn(b"33 99", seen)
        await handle.send_input("exit 3\n")
        self.assertEqual((await handle.wait()).exit_code, 3)

    async def test_git(self):
        box = await self.box()
        await box.git.init("/tmp/r", initial_branch="main")
        await box.fs.upload_file(b"x", "/tmp/r/f")
        await box.git.add("/tmp/r", ["f"])
        done = await box.git.commit("/tmp/r", "first", "A", "a@x")
        self.assertEqual((await box.process.exec("git -C /tmp/r rev-parse HEAD")).result.strip(), done.sha)
        self.assertEqual((await box.git.status("/tmp/r")).current_branch, "main")
        await box.git.clone("file:///tmp/r", "/tmp/c")
        self.assertEqual(await box.fs.download_file("/tmp/c/f"), b"x")

    async def test_the_interpreter(self):
        box = await self.box(snapshot=INTERPRETER)
        await box.code_interpreter.run_code("x = 20")
        self.assertEqual((await box.code_interpreter.run_code("print(x * 2 + 2)")).stdout, "42\n")
        context = await box.code_interpreter.create_context()
        self.assertEqual((await box.code_interpreter.run_code("x", context=context)).error.name, "NameError")
        with self.assertRaises(DaytonaTimeoutError):
            await box.code_interpreter.run_code("import time; time.sleep(60)", timeout=1)

    async def test_code_run(self):
        box = await self.box()
        done = await box.process.code_run("print(6 * 7)")
        self.assertEqual((done.exit_code, done.result), (0, "42\n"))

    async def test_lists_labels_and_volumes(self):
        mark = name("a")
        volume = await self.there.volume.create(name("vol"))
        box = await self.box(labels={"mark": mark}, volumes=[VolumeMount(volume_id=volume.id, mount_path="/v")])
        await box.process.exec("echo v > /v/f")
        found = [b async for b in self.there.list(ListSandboxesQuery(labels={"mark": mark}))]
        self.assertEqual([b.id for b in found], [box.id])
        await box.set_labels({"mark": mark, "more": "1"})
        await box.refresh_data()
        self.assertEqual(box.labels["more"], "1")
        await box.delete(wait=True)
        await self.there.volume.delete(volume)
        self.assertEqual([v.id for v in await self.there.volume.list() if v.id == volume.id], [])

    async def test_secrets(self):
        made = await self.there.secret.create(CreateSecretParams(name=name("S").replace("-", "_"), value="v"))
        self.assertEqual((await self.there.secret.get(made.id)).name, made.name)
        await self.there.secret.delete(made.id)

    async def test_a_fork_and_a_snapshot(self):
        box = await self.box()
        await box.process.exec("echo kept > ~/f")
        fork = await box.fork(name=name("fork"))
        self.addAsyncCleanup(self.remove, fork.id)
        self.assertEqual((await fork.process.exec("cat ~/f")).result, "kept\n")
        word = name("snap")
        await box.create_snapshot(word)
        made = await self.box(snapshot=word)
        self.assertEqual((await made.process.exec("cat ~/f")).result, "kept\n")
        await self.there.snapshot.delete(await self.there.snapshot.get(word))

    async def test_refusals(self):
        box = await self.box()
        for error, ask in (
            (DaytonaNotFoundError, self.there.get("none")),
            (DaytonaBadRequestError, box.process.exec("")),
            (DaytonaTimeoutError, box.process.exec("sleep 300", timeout=1)),
            (DaytonaNotFoundError, box.fs.get_file_info("/none")),
            (DaytonaError, box.process.exec("true", env={"not a name": "1"})),
        ):
            with self.assertRaises(error):
                await ask
