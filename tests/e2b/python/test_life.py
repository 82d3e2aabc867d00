"""Sleep and copies: pause, wake, snapshots, forks, and what of memory and files goes with each."""

import time
import uuid

from e2b import Sandbox, SandboxException, SandboxNotRunningException, SandboxState
from world import Case, count, counted, preview, serve, until


class Pause(Case):
    weight = 9

    def test_processes_stand_still_and_go_on(self):
        box = self.sandbox(timeout=300)
        pid = count(box)
        handle = box.commands.run("sleep 60", background=True)
        self.assertTrue(box.pause())
        self.assertFalse(box.pause())
        self.assertEqual(box.get_info().state, SandboxState.PAUSED)
        again = Sandbox.connect(box.sandbox_id)
        self.assertEqual(again.sandbox_id, box.sandbox_id)
        first = counted(again)
        self.assertEqual(first[0], pid)
        until("it counts on", lambda: counted(again)[1] > first[1] + 3)
        self.assertEqual(again.get_info().state, SandboxState.RUNNING)
        self.assertIn(handle.pid, [process.pid for process in again.commands.list()])

    def test_a_paused_sandbox_answers_nothing_and_is_not_woken_by_looking(self):
        box = self.sandbox()
        box.pause()
        self.assertFalse(box.is_running())
        for call in (lambda: box.commands.run("true"), lambda: box.files.read("/etc/hostname"), lambda: box.files.write("/tmp/x", "x")):
            with self.assertRaises(SandboxNotRunningException):
                call()
        self.assertEqual(Sandbox.get_info(box.sandbox_id).state, SandboxState.PAUSED)
        self.assertEqual(preview(box, 8000).status, 502)
        self.assertTrue(box.kill())
        self.assertFalse(box.kill())

    def test_the_boot_id_changes_with_the_processes(self):
        box, other = self.sandbox(), self.sandbox()
        boot_id = lambda: box.commands.run("cat /proc/sys/kernel/random/boot_id").stdout
        first = boot_id()
        self.assertRegex(first, r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n$")
        self.assertNotEqual(other.commands.run("cat /proc/sys/kernel/random/boot_id").stdout, first)
        self.assertTrue(box.pause())
        box.connect()
        self.assertEqual(boot_id(), first)
        self.assertTrue(box.pause(mode="filesystem"))
        box.connect()
        self.assertNotEqual(boot_id(), first)

    def test_a_pause_of_files_alone_begins_anew_with_them(self):
        box = self.sandbox()
        pid = count(box)
        box.files.write("/home/user/kept", "kept")
        self.assertTrue(box.pause(mode="filesystem"))
        self.assertEqual(box.get_info().state, SandboxState.PAUSED)
        again = box.connect()
        self.assertEqual(again.files.read("/home/user/kept"), "kept")
        self.assertEqual(again.commands.run(f"ps -eo args | grep -c '[c]ounter.py' || true").stdout.strip(), "0")
        self.assertTrue(pid)

    def test_a_wake_may_ask_for_a_new_start(self):
        box = self.sandbox()
        count(box)
        box.files.write("/home/user/kept", "kept")
        Sandbox.pause(box.sandbox_id)
        again = Sandbox.connect(box.sandbox_id, on_resume="reboot")
        self.assertEqual(again.files.read("/home/user/kept"), "kept")
        self.assertEqual(again.commands.run("ps -eo args | grep -c '[c]ounter.py' || true").stdout.strip(), "0")

    def test_the_older_word_for_it_still_works(self):
        box = self.sandbox()
        box.beta_pause()
        self.assertEqual(box.get_info().state, SandboxState.PAUSED)
        self.assertEqual(box.connect().commands.run("echo back").stdout, "back\n")
        Sandbox.beta_pause(box.sandbox_id)
        self.assertEqual(Sandbox.get_info(box.sandbox_id).state, SandboxState.PAUSED)

    def test_environment_and_metadata_survive_a_pause(self):
        box = self.sandbox(envs={"KEPT": "yes"}, metadata={"kept": "yes"})
        box.pause()
        again = Sandbox.connect(box.sandbox_id)
        self.assertEqual(again.commands.run("printf %s $KEPT").stdout, "yes")
        self.assertEqual(again.get_info().metadata, {"kept": "yes"})

    def test_a_paused_sandbox_outlives_its_lifetime_and_gets_a_new_one(self):
        box = self.sandbox(timeout=5)
        box.pause()
        time.sleep(5.5)
        self.assertEqual(box.get_info().state, SandboxState.PAUSED)
        again = box.connect(timeout=60)
        self.assertEqual(again.commands.run("echo alive").stdout, "alive\n")


class Auto(Case):
    weight = 8

    def test_at_its_end_it_is_paused_when_asked(self):
        box = self.sandbox(timeout=6, lifecycle={"on_timeout": "pause"})
        pid = count(box)
        until("it is paused", lambda: box.get_info().state == SandboxState.PAUSED)
        # Without auto_resume nothing but a connect wakes it.
        with self.assertRaises(SandboxNotRunningException):
            box.commands.run("true")
        again = box.connect(timeout=60)
        self.assertEqual(counted(again)[0], pid)

    def test_traffic_wakes_it_when_asked(self):
        box = self.sandbox(timeout=3, lifecycle={"on_timeout": "pause", "auto_resume": True})
        serve(box, 8000)
        before = preview(box, 8000).json()["count"]
        until("it is paused", lambda: box.get_info().state == SandboxState.PAUSED)
        said = preview(box, 8000)
        self.assertEqual(said.status, 200, said)
        self.assertEqual(said.json()["count"], before + 1)
        self.assertEqual(box.get_info().state, SandboxState.RUNNING)
        box.pause()
        self.assertEqual(box.commands.run("echo woken").stdout, "woken\n")

    def test_at_its_end_only_files_may_stay(self):
        box = self.sandbox(timeout=6, lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}})
        count(box)
        until("it is paused", lambda: box.get_info().state == SandboxState.PAUSED)
        again = box.connect(timeout=60)
        self.assertTrue(again.files.exists("/tmp/counter.py") or again.files.exists("/home/user"))
        self.assertEqual(again.commands.run("ps -eo args | grep -c '[c]ounter.py' || true").stdout.strip(), "0")


class Snapshots(Case):
    weight = 9

    def snapshot(self, box, *args, **more):
        made = box.create_snapshot(*args, **more)
        self.addCleanup(Sandbox.delete_snapshot, made.snapshot_id)
        return made

    def test_copies_go_their_own_ways(self):
        box = self.sandbox()
        pid = count(box)
        box.files.write("/tmp/state", "at the snapshot")
        made = self.snapshot(box)
        before = counted(box)
        until("the source goes on", lambda: counted(box)[1] > before[1])
        box.files.write("/tmp/state", "changed after")
        one, two = self.sandbox(made.snapshot_id), self.sandbox(made.snapshot_id)
        self.assertEqual(len({box.sandbox_id, one.sandbox_id, two.sandbox_id}), 3)
        for copy in (one, two):
            self.assertEqual(copy.files.read("/tmp/state"), "at the snapshot")
            self.assertEqual(counted(copy)[0], pid)
            self.assertEqual(copy.commands.run("printf %s $E2B_SANDBOX_ID").stdout, copy.sandbox_id)
        one.files.write("/tmp/state", "of one")
        self.assertEqual(two.files.read("/tmp/state"), "at the snapshot")
        one.commands.run(f"kill {pid}")
        first = counted(two)
        until("the other's process goes on", lambda: counted(two)[1] > first[1])

    def test_a_snapshot_outlives_its_sandbox_until_it_is_deleted(self):
        box = self.sandbox()
        box.files.write("/tmp/state", "kept")
        made = Sandbox.create_snapshot(box.sandbox_id, name="outlives-" + uuid.uuid4().hex[:8])
        box.kill()
        self.assertEqual(self.sandbox(made.snapshot_id).files.read("/tmp/state"), "kept")
        self.assertEqual(self.sandbox(made.names[0]).files.read("/tmp/state"), "kept")
        self.assertTrue(Sandbox.delete_snapshot(made.snapshot_id))
        self.assertFalse(Sandbox.delete_snapshot(made.snapshot_id))
        with self.assertRaises(SandboxException):
            self.sandbox(made.snapshot_id)

    def test_a_snapshot_of_files_alone_starts_fresh(self):
        box = self.sandbox()
        count(box)
        box.files.write("/home/user/state", "kept")
        made = self.snapshot(box, mode="filesystem")
        copy = self.sandbox(made.snapshot_id)
        self.assertEqual(copy.files.read("/home/user/state"), "kept")
        self.assertEqual(copy.commands.run("ps -eo args | grep -c '[c]ounter.py' || true").stdout.strip(), "0")

    def test_snapshots_are_listed_by_sandbox_and_name_in_pages(self):
        box, other = self.sandbox(), self.sandbox()
        mine = [self.snapshot(box).snapshot_id for _ in range(3)]
        name = "named-" + uuid.uuid4().hex[:8]
        named = self.snapshot(other, name)
        self.assertTrue(any(name in each for each in named.names), named)
        pages, seen = box.list_snapshots(limit=2), []
        while pages.has_next:
            seen += [info.snapshot_id for info in pages.next_items()]
            self.assertLessEqual(len(seen), 3)
        self.assertEqual(sorted(seen), sorted(mine))
        self.assertEqual([i.snapshot_id for i in Sandbox.list_snapshots(name=name).next_items()], [named.snapshot_id])
        everything = {info.snapshot_id for info in Sandbox.list_snapshots(limit=100).next_items()}
        self.assertTrue({*mine, named.snapshot_id} <= everything)

    def test_a_name_that_is_used_again_means_the_newer_one(self):
        box, name = self.sandbox(), "again-" + uuid.uuid4().hex[:8]
        box.files.write("/tmp/state", "older")
        self.snapshot(box, name)
        box.files.write("/tmp/state", "newer")
        newer = self.snapshot(box, name)
        self.assertEqual([i.snapshot_id for i in Sandbox.list_snapshots(name=name).next_items()], [newer.snapshot_id])
        # The former one has lost its name and is found by its id alone.
        former = {i.snapshot_id for i in box.list_snapshots().next_items()} - {newer.snapshot_id}
        self.assertEqual(len(former), 1)
        self.addCleanup(Sandbox.delete_snapshot, *former)
        self.assertEqual(self.sandbox(newer.snapshot_id).files.read("/tmp/state"), "newer")
        self.assertEqual(self.sandbox(name).files.read("/tmp/state"), "newer")
        self.assertEqual(self.sandbox(*former).files.read("/tmp/state"), "older")


class Forks(Case):
    weight = 6

    def test_forks_have_the_memory_and_their_own_lives(self):
        box = self.sandbox(envs={"KEPT": "yes"}, metadata={"of": "source"})
        pid = count(box)
        box.files.write("/tmp/state", "common")
        forks = box.fork(count=2, timeout=120)
        for fork in forks:
            self.assertIsInstance(fork, Sandbox)
            self.addCleanup(fork.kill)
            self.assertEqual((fork.files.read("/tmp/state"), counted(fork)[0]), ("common", pid))
            self.assertEqual(fork.commands.run("printf %s $KEPT").stdout, "yes")
        forks[0].files.write("/tmp/state", "of the first")
        self.assertEqual((box.files.read("/tmp/state"), forks[1].files.read("/tmp/state")), ("common", "common"))
        self.assertNotEqual(forks[0]._envd_access_token, box._envd_access_token)
        first = counted(box)
        until("the source goes on", lambda: counted(box)[1] > first[1])

    def test_a_fork_by_id_outlives_its_source(self):
        box = self.sandbox()
        box.files.write("/tmp/state", "common")
        (fork,) = Sandbox.fork(box.sandbox_id)
        self.addCleanup(fork.kill)
        box.kill()
        self.assertEqual(fork.files.read("/tmp/state"), "common")
        for wrong in (0, 21):
            with self.assertRaises(SandboxException):
                fork.fork(count=wrong)
