"""Create, get, list, pause, wake, stop, start, delete."""

import os
import time

import httpx
from leap0 import Leap0NotFoundError

from world import Case, client, key, until


class Life(Case):
    def test_a_create_without_wishes_takes_the_vendors_defaults(self):
        box = self.sandbox()
        self.assertEqual((box.vcpu, box.memory, box.timeout, box.auto_pause), (1, 1024, 300, False))
        self.assertEqual((box.state.value, box.template_id), ("running", "debian"))
        self.assertEqual(box.network_policy, {"mode": "allow-all"})
        self.assertTrue(box.created_at.endswith("Z"))

    def test_a_create_has_what_was_asked_for(self):
        box = self.sandbox(vcpu=2, memory=512, timeout=600, auto_pause=True, env_vars={"GREETING": "hello there"})
        self.assertEqual((box.vcpu, box.memory, box.timeout, box.auto_pause), (2, 512, 600, True))
        self.assertEqual(box.process.execute(command='printf %s "$GREETING"').stdout, "hello there")
        status = self.client.sandboxes.get(box.id)
        self.assertEqual((status.id, status.vcpu, status.memory, status.state.value), (box.id, 2, 512, "running"))

    def test_home_and_workdir_are_those_of_commands(self):
        box = self.sandbox()
        self.assertEqual(box.get_user_home_dir(), box.process.execute(command="printf %s ~").stdout)
        self.assertEqual(box.get_workdir(), box.process.execute(command="pwd").stdout.strip())

    def test_a_paused_sandbox_wakes_by_any_request_and_keeps_its_memory(self):
        box = self.sandbox()
        box.process.execute(command="setsid sh -c 'echo $$ >/tmp/pid; exec sleep 1000' >/dev/null 2>&1 </dev/null &")
        until("it runs", lambda: box.process.execute(command="test -s /tmp/pid").exit_code == 0)
        self.assertEqual(box.pause().state.value, "paused")
        self.assertEqual(box.refresh().state.value, "paused")
        self.assertEqual([one.id for one in self.client.sandboxes.list(state="paused").items], [box.id])
        self.assertEqual(box.refresh().state.value, "paused", "get and list wake nobody")
        self.assertEqual(box.process.execute(command="kill -0 $(cat /tmp/pid) && echo alive").stdout, "alive\n")
        self.assertEqual(box.refresh().state.value, "running")
        box.pause()
        self.assertTrue(box.filesystem.exists(path="/tmp/pid"))
        self.assertEqual(box.refresh().state.value, "running")

    def test_a_paused_sandbox_has_its_memory_on_disk(self):
        held = 400_000_000
        box = self.sandbox(auto_pause=True)
        box.process.execute(command=f"setsid python3 -c 'import time; d = bytearray(b\"x\") * {held}; open(\"/tmp/full\", \"w\"); "
                                    "time.sleep(1000)' >/dev/null 2>&1 </dev/null &")
        until("it holds the memory", lambda: box.filesystem.exists(path="/tmp/full"))
        self.assertGreater(self.native(box, "/metrics")["memory_bytes"], held)
        self.assertEqual(box.pause().state.value, "paused")
        paused = self.native(box)
        self.assertEqual((paused["phase"], paused["held"]), ("paused", "disk"))
        self.assertEqual(box.process.execute(command="pgrep -c python3").stdout, "1\n")
        # At the end of its lifetime too, a moment later.
        ending = self.sandbox(timeout=1, auto_pause=True)
        until("its memory is on disk", lambda: self.native(ending).get("held") == "disk")

    def test_a_stopped_sandbox_keeps_its_files_and_starts(self):
        box = self.sandbox()
        box.filesystem.write_file(path="/var/tmp/keep.txt", content="kept")
        answer = self.raw("POST", f"/v1/sandbox/{box.id}/stop")
        self.assertEqual((answer.status_code, answer.json()["state"]), (200, "stopped"))
        self.assertEqual(box.refresh().state, "stopped")
        answer = self.raw("POST", f"/v1/sandbox/{box.id}/start/")
        self.assertEqual((answer.status_code, answer.json()["state"]), (200, "running"))
        self.assertEqual(self.raw("POST", f"/v1/sandbox/{box.id}/start").status_code, 409)
        self.assertEqual(box.filesystem.read_file(path="/var/tmp/keep.txt"), "kept")

    def test_a_lifetime_ends_in_a_pause_or_in_nothing(self):
        kept, gone = self.sandbox(timeout=1, auto_pause=True), self.sandbox(timeout=1)
        until("it is paused", lambda: kept.refresh().state == "paused")
        until("it is deleted", lambda: gone.refresh().state == "deleted")
        self.assertEqual(kept.process.execute(command="echo woken").stdout, "woken\n")

    def test_lists_are_sorted_counted_and_cut_into_pages(self):
        made = [self.sandbox(memory=512) for _ in range(3)]
        page = self.client.sandboxes.list(order_by="asc", page_size=100)
        mine = [one.id for one in page.items if one.id in {box.id for box in made}]
        self.assertEqual(mine, [box.id for box in made])
        self.assertEqual(page.total_items, len(page.items))
        first, second = (self.client.sandboxes.list(order_by="asc", page=n, page_size=2) for n in (1, 2))
        self.assertEqual([one.id for one in first.items + second.items][:3], [one.id for one in page.items][:3])
        self.assertEqual((len(first.items), first.total_items), (2, page.total_items))
        self.assertEqual(self.client.sandboxes.list(page=99).items, [])
        one = page.items[0]
        self.assertTrue(one.launch_time and one.state_change_time and one.timeout_at > time.time())
        self.assertEqual(self.client.sandboxes.list(state="unpausing").items, [])

    def test_a_deleted_sandbox_is_gone_for_every_call(self):
        box = self.client.sandboxes.create()
        box.delete()
        self.assertEqual(self.client.sandboxes.get(box.id).state.value, "deleted")
        for call in (box.pause, lambda: box.process.execute(command="true"), lambda: box.filesystem.ls(path="/")):
            with self.assertRaises(Leap0NotFoundError):
                call()
        self.assertNotIn(box.id, [one.id for one in self.client.sandboxes.list(page_size=100).items])

    def test_a_key_is_taken_bare_and_in_the_vendors_own_header(self):
        for more in ({"bearer": False}, {"auth_header": "leap0-authorization"}):
            with self.subTest(more):
                other = client(**more)
                self.assertGreaterEqual(other.sandboxes.list().total_items, 0)
                other.close()

    def native(self, box, part=""):
        """The sandbox, or a part of it, by the server's own API."""
        base = os.environ["LEAP0_BASE_URL"].removesuffix("/leap0")
        return httpx.get(f"{base}/v1/sandboxes/{box.id}{part}", headers={"authorization": f"Bearer {key()}"}, timeout=60).json()

    def raw(self, method, path):
        base = os.environ["LEAP0_BASE_URL"]
        return httpx.request(method, f"{base}{path}", headers={"authorization": key()}, timeout=60)
