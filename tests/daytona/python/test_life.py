"""The life of a sandbox: created, stopped, started, paused, archived, resized, forked, deleted; what is kept and what is refused."""

import json
import os
import threading
import time
import urllib.error
import urllib.request

from daytona import (
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    Resources,
    SandboxState,
)

from world import Case, client, name, until


class Life(Case):
    def test_a_fresh_sandbox_runs_with_the_vendors_defaults(self):
        box = self.create()
        self.assertEqual(box.state, SandboxState.STARTED)
        self.assertEqual((box.auto_stop_interval, box.auto_archive_interval, box.auto_delete_interval), (15, 7 * 24 * 60, -1))
        self.assertEqual((box.public, box.network_block_all, box.gpu, box.user), (False, False, 0, "daytona"))
        self.assertEqual(self.sh("echo hi", box=box), "hi\n")
        self.assertEqual(client().get(box.id).name, box.name)

    def test_name_labels_and_environment(self):
        word = name("named")
        box = self.create(name=word, labels={"team": "ünï", "x": "1"}, env_vars={"GREETING": "hello $USER"})
        self.assertEqual(self.sh('echo "$GREETING"', box=box), "hello $USER\n")
        again = client().get(word)
        self.assertEqual((again.id, again.labels["team"], again.env["GREETING"]), (box.id, "ünï", "hello $USER"))

    def test_a_name_is_taken_once_and_free_again_after_delete(self):
        word = name("once")
        box = self.create(name=word)
        with self.assertRaises(DaytonaConflictError):
            self.create(name=word)
        box.delete(wait=True)
        self.assertEqual(self.create(name=word).name, word)

    def test_stop_keeps_files_and_ends_processes(self):
        box = self.create()
        self.sh("echo kept > ~/kept; nohup sleep 300 >/dev/null 2>&1 &", box=box)
        box.stop()
        self.assertEqual(box.state, SandboxState.STOPPED)
        with self.assertRaises(DaytonaError):
            box.process.exec("true")
        self.assertEqual(client().get(box.id).state, SandboxState.STOPPED, "a command must not wake it")
        box.start()
        self.assertEqual(box.state, SandboxState.STARTED)
        self.assertEqual(self.sh("cat ~/kept; pgrep -c sleep || true", box=box), "kept\n0\n")

    def test_stop_of_a_stopped_one_is_refused_and_start_of_a_started_one_is_not(self):
        box = self.create()
        box.start()
        box.stop(force=True)
        with self.assertRaises(DaytonaBadRequestError):
            box.stop()
        client().start(box)
        client().stop(box)
        self.assertEqual(box.state, SandboxState.STOPPED)

    def test_pause_keeps_processes(self):
        box = self.create()
        self.sh("echo 5 > ~/n; nohup sh -c 'while :; do n=$(cat ~/n); echo $((n+1)) > ~/n.t; mv ~/n.t ~/n; sleep 0.05; done' >/dev/null 2>&1 &", box=box)
        box.pause()
        self.assertEqual(box.state, SandboxState.PAUSED)
        with self.assertRaises(DaytonaError):
            box.process.exec("true")
        box.start()
        before = int(self.sh("cat ~/n", box=box))
        until("it counts on", lambda: int(self.sh("cat ~/n", box=box)) > before)

    def test_archive_only_when_stopped_and_back_with_its_files(self):
        box = self.create()
        self.sh("echo archived > ~/f", box=box)
        with self.assertRaises(DaytonaBadRequestError):
            box.archive()
        box.stop()
        box.archive()
        until("it is archived", lambda: client().get(box.id).state == SandboxState.ARCHIVED)
        box.refresh_data()
        box.start()
        self.assertEqual(self.sh("cat ~/f", box=box), "archived\n")

    def test_delete_is_the_end(self):
        box = self.create()
        box.delete(wait=True)
        with self.assertRaises(DaytonaNotFoundError):
            client().get(box.id)
        with self.assertRaises(DaytonaError):
            box.process.exec("true")
        with self.assertRaises(DaytonaNotFoundError):
            client().delete(box)

    def test_an_ephemeral_one_goes_with_its_stop(self):
        box = self.create(ephemeral=True)
        self.assertEqual(box.auto_delete_interval, 0)
        box.stop()

        def gone():
            try:
                return client().get(box.id).state in (SandboxState.DESTROYED, SandboxState.DESTROYING)
            except DaytonaNotFoundError:
                return True

        until("it is gone", gone)

    def test_deleted_in_the_middle_of_a_call(self):
        box = self.create()
        failed = []

        def run():
            try:
                box.process.exec("sleep 600")
            except Exception as error:  # noqa: BLE001 - which class depends on the moment
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until("it runs", lambda: box.process.exec("pgrep sleep").exit_code == 0)
        client().get(box.id).delete()
        thread.join(60)
        self.assertFalse(thread.is_alive(), "the call hangs")
        self.assertEqual(len(failed), 1)
        self.assertIsInstance(failed[0], DaytonaError)

    def test_intervals_are_set_and_seen(self):
        box = self.create(auto_stop_interval=30, auto_archive_interval=60, auto_delete_interval=120)
        self.assertEqual((box.auto_stop_interval, box.auto_archive_interval, box.auto_delete_interval), (30, 60, 120))
        box.set_autostop_interval(0)
        box.set_auto_archive_interval(90)
        box.set_auto_delete_interval(-1)
        seen = client().get(box.id)
        self.assertEqual((seen.auto_stop_interval, seen.auto_archive_interval, seen.auto_delete_interval), (0, 90, -1))
        with self.assertRaises(DaytonaError):
            box.set_autostop_interval(-5)

    def test_a_pause_interval_stands_instead_of_a_stop_interval(self):
        box = self.create(auto_stop_interval=0)
        box.set_auto_pause_interval(10)
        seen = client().get(box.id)
        self.assertEqual((seen.auto_stop_interval, seen.auto_pause_interval), (0, 10))

    def test_a_time_to_live_is_an_end_that_is_known(self):
        box = self.create()
        box.set_ttl(60)
        at = client().get(box.id).auto_destroy_at
        self.assertTrue(at)
        box.set_ttl(0)
        self.assertFalse(client().get(box.id).auto_destroy_at)

    def test_activity_is_told(self):
        box = self.create()
        before = client().get(box.id).last_activity_at
        time.sleep(0.05)
        box.refresh_activity()
        box.refresh_data()
        self.assertTrue(box.last_activity_at)
        self.assertGreaterEqual(box.last_activity_at, before or "")

    def test_labels_are_replaced_whole(self):
        box = self.create(labels={"a": "1"})
        self.assertEqual(box.set_labels({"b": "2"})["b"], "2")
        seen = client().get(box.id).labels
        self.assertEqual((seen.get("a"), seen.get("b")), (None, "2"))

    def test_environment_is_changed_while_it_runs(self):
        box = self.create(env_vars={"OLD": "1", "GONE": "1"})
        box.update_env({"NEW": "ünï", "OLD": "2"}, unset=["GONE"])
        self.assertEqual(self.sh('echo "$OLD $NEW [$GONE]"', box=box), "2 ünï []\n")
        box.stop()
        box.start()
        self.assertEqual(self.sh('echo "$OLD $NEW [$GONE]"', box=box), "2 ünï []\n")

    def test_sizes_may_be_written_with_a_point(self):
        # The SDK's own types take whole numbers only; other programs send what Python makes of 2 * 1.0.
        def ask(path, body):
            url, key = os.environ["DAYTONA_API_URL"], os.environ["DAYTONA_API_KEY"]
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            sent = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(sent, timeout=60) as answer:
                return json.load(answer)

        made = ask("/sandbox", {"cpu": 2.0, "memory": 1.0, "disk": 3.0})
        self.addCleanup(self._remove, made["id"])
        box = client().get(made["id"])
        self.assertEqual((box.cpu, box.memory, box.disk), (2, 1, 3))
        ask(f"/sandbox/{box.id}/resize", {"cpu": 3.0, "memory": 2.0})
        self.assertEqual((client().get(box.id).cpu, client().get(box.id).memory), (3, 2))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            ask("/sandbox", {"cpu": 1.5})
        self.assertEqual(refused.exception.code, 400)
        self.assertIn("cpu", refused.exception.read().decode())

    def test_resize_gives_more_and_takes_disk_never_back(self):
        box = self.create()
        cpu, memory, disk = box.cpu, box.memory, box.disk
        box.resize(Resources(cpu=cpu + 1, memory=memory + 1))
        self.assertEqual((client().get(box.id).cpu, client().get(box.id).memory), (cpu + 1, memory + 1))
        total = self.sh("cat /sys/fs/cgroup/memory.max 2>/dev/null || free -b | awk '/Mem/{print $2}'", box=box)
        self.assertTrue(total)
        for refused in (Resources(cpu=cpu), Resources(disk=disk + 1)):
            with self.assertRaises(DaytonaBadRequestError):
                box.resize(refused)
        box.stop()
        box.resize(Resources(cpu=cpu, disk=disk + 1))
        self.assertEqual((client().get(box.id).cpu, client().get(box.id).disk), (cpu, disk + 1))
        with self.assertRaises(DaytonaBadRequestError):
            box.resize(Resources(disk=disk))
        box.wait_for_resize_complete()

    def test_a_fork_has_the_files_and_goes_its_own_way(self):
        box = self.create()
        self.sh("echo before > ~/f", box=box)
        fork = box.fork(name=name("fork"))
        self.addCleanup(self._remove, fork.id)
        self.assertEqual(self.sh("cat ~/f; echo mine > ~/f", box=fork), "before\n")
        self.assertEqual(self.sh("cat ~/f", box=box), "before\n")
        self.assertNotEqual(fork.id, box.id)

    def test_recover_is_for_what_failed(self):
        box = self.create()
        with self.assertRaises(DaytonaBadRequestError):
            box.recover()

    def test_waits(self):
        box = self.create()
        box.wait_for_sandbox_start()
        box.stop()
        box.wait_for_sandbox_stop()
        self.assertEqual(box.state, SandboxState.STOPPED)

    def test_a_wait_ends_with_the_event(self):
        """One client waits while another acts: without the socket a look comes once a second."""
        box = self.create()
        box.stop()
        other = Daytona()
        seen = other.get(box.id)
        time.sleep(0.3)  # its socket is up
        ended = []

        def wait():
            seen.wait_for_sandbox_start(timeout=60)
            ended.append(time.monotonic())

        late = []
        for _ in range(6):
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.15)
            box.start()
            at = time.monotonic()
            thread.join(60)
            late.append(ended[-1] - at)
            # A busy machine may be late once or twice.
            if late[-1] < 0.4:
                break
            box.stop()
            seen.refresh_data()
        self.assertLess(min(late), 0.4, f"waits ended {late} s after the change")

    def test_metrics_of_now_and_before(self):
        box = self.create()
        now = box.get_metrics_latest()
        self.assertEqual(now.cpu_count, box.cpu)
        self.assertGreater(now.mem_total, 0)
        self.assertGreater(now.disk_total, 0)
        self.assertGreater(now.mem_used, 0)

    def test_a_gpu_that_is_not_there_is_refused(self):
        from daytona import CreateSandboxFromImageParams

        with self.assertRaises(DaytonaBadRequestError):
            client().create(CreateSandboxFromImageParams(image="debian", resources=Resources(gpu=1), ephemeral=True))

    def test_a_snapshot_that_is_not_there_is_refused(self):
        with self.assertRaises(DaytonaError) as refused:
            self.create(snapshot="no-such-snapshot")
        self.assertIn("no-such-snapshot", str(refused.exception))

    def test_what_cannot_be_is_refused_with_words(self):
        for params in (
            {"auto_stop_interval": -1},
            {"env_vars": {"A=B": "x"}},
            {"network_allow_list": "not-a-cidr"},
            {"name": "bad/name"},
        ):
            with self.assertRaises(DaytonaError, msg=str(params)) as refused:
                self.create(**params)
            self.assertNotIn("Internal", type(refused.exception).__name__)

    def test_a_wait_of_no_time_is_an_error_of_its_own(self):
        box = self.create()
        box.stop()
        with self.assertRaises((DaytonaTimeoutError, DaytonaError)):
            box.start(timeout=-1)

    def test_a_client_without_sockets_works_too(self):
        polling = Daytona(DaytonaConfig(use_deprecated_polling=True))
        box = polling.create(CreateSandboxFromSnapshotParams())
        self.addCleanup(self._remove, box.id)
        box.stop()
        box.start()
        self.assertEqual(box.process.exec("echo polled").result, "polled\n")
