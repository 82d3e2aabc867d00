"""The other half of the SDK: the same sandboxes by `async`, with many things at once."""

import asyncio
import datetime
import hashlib
import os
import time
import uuid

from e2b import (
    AsyncSandbox as PlainSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType as T,
    FileType,
    GitUpstreamException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from world import APP, AsyncCase, COUNTER, api, preview, raw, until_async


class Lives(AsyncCase):
    weight = 9
    kind = PlainSandbox

    async def test_ten_are_made_at_once_and_keep_apart(self):
        boxes = await asyncio.gather(*(self.sandbox(metadata={"n": str(n)}) for n in range(10)))
        await asyncio.gather(*(box.files.write("/tmp/n", str(n)) for n, box in enumerate(boxes)))
        said = await asyncio.gather(*(box.commands.run("cat /tmp/n") for box in boxes))
        self.assertEqual([ran.stdout for ran in said], [str(n) for n in range(10)])
        self.assertEqual(len({box.sandbox_id for box in boxes}), 10)

    async def test_kill_works_once_by_object_and_by_id(self):
        one, two = await self.sandbox(), await self.sandbox()
        self.assertTrue(await one.is_running())
        self.assertEqual([await one.kill(), await one.kill()], [True, False])
        self.assertEqual([await PlainSandbox.kill(two.sandbox_id), await PlainSandbox.kill(two.sandbox_id)], [True, False])
        self.assertFalse(await one.is_running())
        with self.assertRaises(SandboxNotRunningException):
            await one.commands.run("true")
        with self.assertRaises(SandboxNotFoundException):
            await PlainSandbox.connect(one.sandbox_id)

    async def test_lifetimes_are_set_and_shown(self):
        box = await self.sandbox(timeout=100)
        left = (await box.get_info()).end_at - datetime.datetime.now(datetime.timezone.utc)
        self.assertAlmostEqual(left.total_seconds(), 100, delta=30)
        await box.set_timeout(500)
        await PlainSandbox.set_timeout(box.sandbox_id, 400)
        await box.connect(timeout=10)
        left = (await PlainSandbox.get_info(box.sandbox_id)).end_at - datetime.datetime.now(datetime.timezone.utc)
        self.assertAlmostEqual(left.total_seconds(), 400, delta=30)

    async def test_lists_come_in_pages(self):
        mark = uuid.uuid4().hex
        made = [(await self.sandbox(metadata={"mark": mark})).sandbox_id for _ in range(3)]
        pages, seen = PlainSandbox.list(query=SandboxQuery(metadata={"mark": mark}), limit=2), []
        while pages.has_next:
            seen += [info.sandbox_id for info in await pages.next_items()]
        self.assertEqual((seen, pages.next_token or None), (made[::-1], None))

    async def test_processes_survive_a_pause(self):
        box = await self.sandbox()
        await box.files.write("/tmp/counter.py", COUNTER)
        await box.commands.run("setsid python3 /tmp/counter.py >/dev/null 2>&1 </dev/null &")
        await until_async("it counts", lambda: box.files.exists("/tmp/count"))
        before = (await box.files.read("/tmp/count")).split()
        self.assertTrue(await box.pause())
        self.assertFalse(await PlainSandbox.pause(box.sandbox_id))
        self.assertEqual((await box.get_info()).state, SandboxState.PAUSED)
        again = await PlainSandbox.connect(box.sandbox_id)
        after = (await again.files.read("/tmp/count")).split()
        self.assertEqual(after[0], before[0])
        self.assertGreaterEqual(int(after[1]), int(before[1]))
        await again.beta_pause()
        await PlainSandbox.connect(box.sandbox_id)
        await PlainSandbox.beta_pause(box.sandbox_id)
        self.assertEqual((await box.get_info()).state, SandboxState.PAUSED)

    async def test_snapshots_and_forks_are_independent(self):
        box = await self.sandbox()
        await box.files.write("/tmp/state", "common")
        named = "async-" + uuid.uuid4().hex[:8]
        first, second = await box.create_snapshot(named), await PlainSandbox.create_snapshot(box.sandbox_id)
        pages, seen = box.list_snapshots(limit=1), []
        while pages.has_next:
            seen += [info.snapshot_id for info in await pages.next_items()]
        self.assertEqual(sorted(seen), sorted([first.snapshot_id, second.snapshot_id]))
        self.assertFalse(pages.next_token)
        found = await PlainSandbox.list_snapshots(name=named).next_items()
        self.assertEqual([info.snapshot_id for info in found], [first.snapshot_id])
        (fork,) = await box.fork()
        (other,) = await PlainSandbox.fork(box.sandbox_id, count=1)
        copy = await self.sandbox(first.snapshot_id)
        for made in (fork, other):
            self.ends(made)
        await fork.files.write("/tmp/state", "of the fork")
        self.assertEqual([await b.files.read("/tmp/state") for b in (box, copy, other)], ["common"] * 3)
        for made in (first, second):
            self.assertTrue(await PlainSandbox.delete_snapshot(made.snapshot_id))
            self.assertFalse(await PlainSandbox.delete_snapshot(made.snapshot_id))

    async def test_metrics_links_and_hosts(self):
        box = await self.sandbox()
        await box.files.write("/tmp/app.py", APP)
        await box.commands.run("setsid python3 /tmp/app.py 8000 >/dev/null 2>&1 </dev/null &")
        said = await until_async("the app answers", lambda: (lambda a: a if a.status == 200 else None)(preview(box, 8000)))
        self.assertEqual(said.json()["method"], "GET")
        self.assertTrue(box.get_host(8000).endswith(box.sandbox_domain))
        self.assertTrue(box.get_mcp_url().endswith("/mcp"))
        self.assertTrue(box.envd_direct_url and box.envd_api_url and box.connection_config)
        self.assertIsNone(box.traffic_access_token)
        await box.files.write("/tmp/linked", "linked")
        self.assertEqual(raw("GET", box.download_url("/tmp/linked", use_signature_expiration=60)).body, b"linked")
        link = box.upload_url("/tmp/up")
        form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nup\r\n--b--\r\n"
        self.assertEqual(raw("POST", link, {"Content-Type": "multipart/form-data; boundary=b"}, form).status, 200)
        self.assertEqual(await box.files.read("/tmp/up"), "up")
        metrics = await until_async("there are metrics", lambda: box.get_metrics())
        self.assertGreater(metrics[-1].mem_used, 0)
        self.assertTrue(await PlainSandbox.get_metrics(box.sandbox_id))

    async def test_policies_change_while_it_runs(self):
        box = await self.sandbox(allow_internet_access=False)
        reach = lambda: box.commands.run("curl -s -m 3 http://good.test/async || true")
        self.assertNotIn("hello", (await reach()).stdout)
        await box.update_network({"allow_internet_access": True})
        self.assertIn("hello from the internet", (await reach()).stdout)
        await PlainSandbox.update_network(box.sandbox_id, {"deny_out": ["0.0.0.0/0"]})
        self.assertNotIn("hello", (await reach()).stdout)

    async def test_a_token_of_mcp_is_a_file_of_root(self):
        box = await self.sandbox()
        await box.files.write("/etc/mcp-gateway/.token", "the-token", user="root")
        self.assertEqual(await box.get_mcp_token(), "the-token")

    async def test_wrong_keys_and_other_tenants_see_nothing(self):
        box = await self.sandbox()
        with self.assertRaises(AuthenticationException):
            await PlainSandbox.create(api_key="e2b_" + "1" * 40)
        with self.assertRaises(SandboxNotFoundException):
            await PlainSandbox.connect(box.sandbox_id, api_key=os.environ["E2B_OTHER_KEY"])


class Commands(AsyncCase):
    kind = PlainSandbox

    async def test_fifty_at_once_keep_apart(self):
        box = await self.sandbox()
        said = await asyncio.gather(*(box.commands.run(f"sleep 0.2; echo {n}") for n in range(50)))
        self.assertEqual([ran.stdout for ran in said], [f"{n}\n" for n in range(50)])

    async def test_a_handle_tells_waits_and_kills(self):
        box = await self.sandbox()
        heard = []
        handle = await box.commands.run("echo a; echo b >&2; exit 4", background=True, on_stdout=heard.append)
        with self.assertRaises(CommandExitException):
            await handle.wait()
        self.assertEqual((heard, handle.stdout, handle.stderr, handle.exit_code), (["a\n"], "a\n", "b\n", 4))
        self.assertIn("4", handle.error)
        long = await box.commands.run("sleep 60", background=True)
        self.assertIn(long.pid, [process.pid for process in await box.commands.list()])
        self.assertTrue(await long.kill())
        with self.assertRaises(CommandExitException):
            await long.wait()
        self.assertFalse(await box.commands.kill(long.pid))

    async def test_a_command_is_found_again(self):
        box = await self.sandbox()
        first = await box.commands.run("while [ ! -e /tmp/connected ]; do sleep 0.02; done; echo late", background=True)
        await first.disconnect()
        again = await box.commands.connect(first.pid)
        await box.files.write("/tmp/connected", "")
        self.assertEqual((await again.wait()).stdout, "late\n")
        with self.assertRaises(NotFoundException):
            await box.commands.connect(999_999)

    async def test_input_goes_in_until_it_is_closed(self):
        box = await self.sandbox()
        handle = await box.commands.run("cat; echo end", background=True, stdin=True)
        await box.commands.send_stdin(handle.pid, "one\n")
        await handle.send_stdin("two ä\n")
        async with box.commands.stream_input(handle.pid) as stream:
            for n in range(100):
                await stream.send(f"{n}\n")
        await handle.close_stdin()
        self.assertEqual((await handle.wait()).stdout, "one\ntwo ä\n" + "".join(f"{n}\n" for n in range(100)) + "end\n")
        second = await box.commands.run("wc -c", background=True, stdin=True)
        await box.commands.close_stdin(second.pid)
        self.assertEqual((await second.wait()).stdout.strip(), "0")

    async def test_what_takes_too_long_is_ended(self):
        box = await self.sandbox()
        with self.assertRaises(TimeoutException):
            await box.commands.run("exec -a too-long sleep 300", timeout=0.5)
        await until_async("it is gone", lambda: self.gone(box))
        with self.assertRaises(InvalidArgumentException):
            await box.commands.run("true", cwd="/no/such/folder")
        with self.assertRaises(AuthenticationException):
            await box.commands.run("true", user="nobody-of-that-name")

    async def gone(self, box):
        return "too-long" not in (await box.commands.run("ps -eo args")).stdout

    async def test_killing_the_sandbox_ends_every_wait(self):
        box = await self.sandbox()
        handles = [await box.commands.run("sleep 600", background=True) for _ in range(5)]
        began = time.monotonic()
        await box.kill()
        for handle in handles:
            with self.assertRaises(SandboxNotRunningException):
                await handle.wait()
        self.assertLess(time.monotonic() - began, 40)

    async def test_a_terminal_is_one(self):
        box = await self.sandbox()
        screen = []
        handle = await box.pty.create(PtySize(rows=30, cols=99), lambda data: screen.append(data), timeout=0, cwd="/tmp")
        text = lambda: b"".join(screen).decode(errors="replace")
        await box.pty.send_stdin(handle.pid, b"stty size; pwd\n")
        await until_async("its size", lambda: "30 99" in text() and "/tmp" in text())
        await box.pty.resize(handle.pid, PtySize(rows=11, cols=44))
        stream = box.pty.stream_input(handle.pid)
        await stream.send(b"stty size\n")
        await stream.close()
        await until_async("its new size", lambda: "11 44" in text())
        second = []
        again = await box.pty.connect(handle.pid, lambda data: second.append(data), timeout=0)
        await box.pty.send_stdin(again.pid, b"echo twice-$((1+1))\n")
        await until_async("both see it", lambda: b"twice-2" in b"".join(screen) and b"twice-2" in b"".join(second))
        self.assertTrue(await box.pty.kill(handle.pid))
        with self.assertRaises(CommandExitException):
            await handle.wait()
        self.assertFalse(await box.pty.kill(handle.pid))


class Files(AsyncCase):
    kind = PlainSandbox

    async def asyncSetUp(self):
        self.box = await self.sandbox()
        self.files = self.box.files

    async def test_content_of_every_kind_survives(self):
        every = bytes(range(256)) * 500
        await self.files.write("/tmp/b", every)
        self.assertEqual(bytes(await self.files.read("/tmp/b", format="bytes")), every)
        await self.files.write("/tmp/z", "zip " * 1000, gzip=True)
        self.assertEqual(await self.files.read("/tmp/z", gzip=True), "zip " * 1000)
        await self.files.write("/tmp/e", "")
        self.assertEqual(await self.files.read("/tmp/e"), "")
        written = await self.files.write_files([{"path": f"/tmp/w/{n}", "data": str(n)} for n in range(50)])
        self.assertEqual(len(written), 50)
        self.assertEqual(len(await self.files.list("/tmp/w")), 50)

    async def test_a_stream_goes_in_and_out(self):
        piece = b"0123456789abcdef" * 65536

        async def pieces():
            for _ in range(20):
                yield piece

        await self.files.write("/tmp/s", pieces())
        whole = hashlib.sha256(piece * 20).hexdigest()
        self.assertIn(whole, (await self.box.commands.run("sha256sum /tmp/s")).stdout)
        back = hashlib.sha256()
        async for chunk in await self.files.read("/tmp/s", format="stream"):
            back.update(chunk)
        self.assertEqual(back.hexdigest(), whole)

    async def test_folders_links_and_what_is_missing(self):
        self.assertTrue(await self.files.make_dir("/tmp/d/e"))
        self.assertFalse(await self.files.make_dir("/tmp/d/e"))
        await self.files.write("/tmp/d/f", "12345")
        info = await self.files.get_info("/tmp/d/f")
        self.assertEqual((info.size, info.type, info.owner), (5, FileType.FILE, "user"))
        moved = await self.files.rename("/tmp/d/f", "/tmp/d/g")
        self.assertEqual((moved.path, await self.files.exists("/tmp/d/f")), ("/tmp/d/g", False))
        await self.files.remove("/tmp/d")
        self.assertFalse(await self.files.exists("/tmp/d/g"))
        for missing in (self.files.read("/tmp/no"), self.files.list("/tmp/no"), self.files.get_info("/tmp/no")):
            with self.assertRaises(FileNotFoundException):
                await missing

    async def test_events_are_told_as_they_happen(self):
        await self.files.make_dir("/tmp/watched")
        events, ends = [], []
        handle = await self.files.watch_dir(
            "/tmp/watched", on_event=events.append, on_exit=ends.append, recursive=True, include_entry=True
        )
        await self.box.commands.run("for i in $(seq 1 500); do : > f$i; done; mkdir d; sleep 0.2; echo x > d/deep; rm f1", cwd="/tmp/watched")
        wanted = {f"f{n}" for n in range(1, 501)} | {"d", "d/deep"}
        await until_async("all are told", lambda: {e.name for e in events if e.type == T.CREATE} >= wanted)
        await until_async("the end of one too", lambda: any(e.name == "f1" and e.type == T.REMOVE for e in events))
        await handle.stop()
        await until_async("the end is told", lambda: ends)
        told = len(events)
        await self.files.write("/tmp/watched/after", "x")
        await asyncio.sleep(0.3)
        self.assertEqual(len(events), told)

    async def test_a_watch_ends_with_its_sandbox(self):
        ends = []
        await self.files.watch_dir("/tmp", on_event=lambda e: None, on_exit=ends.append, timeout=0)
        await self.box.kill()
        await until_async("the end is told", lambda: ends)
        self.assertIsInstance(ends[0], Exception)


class Git(AsyncCase):
    kind = PlainSandbox

    async def test_a_whole_history_by_the_helpers(self):
        box = await self.sandbox()
        git, path = box.git, "/home/user/repo"
        await git.configure_user("A", "a@example.test")
        await git.init(path, initial_branch="main")
        await git.init("/home/user/hub.git", bare=True, initial_branch="main")
        await box.files.write(f"{path}/a", "one")
        await git.add(path)
        await git.commit(path, "first")
        await git.create_branch(path, "topic")
        await git.checkout_branch(path, "main")
        self.assertEqual(sorted((await git.branches(path)).branches), ["main", "topic"])
        await git.delete_branch(path, "topic", force=True)
        with self.assertRaises(GitUpstreamException):
            await git.pull(path)
        await git.remote_add(path, "origin", "/home/user/hub.git")
        self.assertEqual(await git.remote_get(path, "origin"), "/home/user/hub.git")
        await git.push(path, remote="origin", branch="main")
        await git.clone("/home/user/hub.git", path="/home/user/cloned")
        await box.files.write(f"{path}/a", "two")
        self.assertFalse((await git.status(path)).is_clean)
        await git.restore(path, paths=["a"])
        self.assertEqual(await box.files.read(f"{path}/a"), "one")
        await box.files.write(f"{path}/a", "three")
        await git.add(path)
        await git.commit(path, "third")
        await git.push(path)
        await git.pull("/home/user/cloned")
        self.assertEqual(await box.files.read("/home/user/cloned/a"), "three")
        await git.reset(path, mode="hard", target="HEAD~1")
        self.assertEqual(await box.files.read(f"{path}/a"), "one")
        await git.set_config("x.y", "z")
        self.assertEqual(await git.get_config("x.y"), "z")
        await git.dangerously_authenticate("u", "p", host="h.test")
        self.assertIn("h.test", (await box.commands.run("cat ~/.git-credentials")).stdout)


class Code(AsyncCase):
    weight = 6

    async def test_contexts_run_beside_each_other(self):
        box = await self.sandbox()
        contexts = await asyncio.gather(*(box.create_code_context() for _ in range(3)))
        await asyncio.gather(*(box.run_code(f"x = {n}", context=c) for n, c in enumerate(contexts)))
        said = await asyncio.gather(*(box.run_code("x * 10", context=c) for c in contexts))
        self.assertEqual([ran.text for ran in said], ["0", "10", "20"])
        await box.restart_code_context(contexts[0])
        self.assertEqual((await box.run_code("x", context=contexts[0])).error.name, "NameError")
        await box.remove_code_context(contexts[1])
        self.assertNotIn(contexts[1].id, [c.id for c in await box.list_code_contexts()])

    async def test_output_errors_and_charts_are_told(self):
        box = await self.sandbox()
        out, results, errors = [], [], []
        code = "import matplotlib.pyplot as plt\nprint('said')\nplt.plot([1, 2], [3, 4]); plt.title('T'); plt.show()"
        ran = await box.run_code(code, on_stdout=lambda m: out.append(m.line), on_result=results.append)
        self.assertEqual(("".join(out), ran.error), ("said\n", None))
        self.assertEqual([r.chart.title for r in results if r.chart], ["T"])
        await box.run_code("boom()", on_error=errors.append)
        self.assertEqual(errors[0].name, "NameError")
        self.assertEqual((await box.run_code("let a = 20; a + 1", language="javascript")).text, "21")

    async def test_a_run_that_was_left_is_interrupted(self):
        box = await self.sandbox()
        await box.run_code("import time")
        run = asyncio.create_task(box.run_code("time.sleep(600)"))
        await asyncio.sleep(0.7)
        run.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await run
        began = time.monotonic()
        self.assertEqual((await box.run_code("2 + 2", timeout=60)).text, "4")
        self.assertLess(time.monotonic() - began, 60)
        with self.assertRaises(TimeoutException):
            await box.run_code("time.sleep(60)", timeout=0.5)
