"""Snapshots: taken, listed, made into new sandboxes, deleted; with their network policy."""

from leap0 import Leap0ConflictError, Leap0NotFoundError

from world import Case


class Snapshots(Case):
    def test_a_snapshot_becomes_a_new_sandbox(self):
        box = self.sandbox(memory=512, network_policy={"mode": "deny-all"})
        box.filesystem.write_file(path="/var/tmp/kept", content="kept")
        kept = box.create_snapshot(name="first-one")
        self.addCleanup(lambda: self.client.snapshots.delete(kept))
        self.assertEqual((kept.name, kept.memory, kept.template_id), ("first-one", 512, "debian"))
        self.assertEqual(kept.network_policy, {"mode": "deny-all"})
        with self.assertRaises(Leap0ConflictError):
            box.create_snapshot(name="first-one")
        listed = self.client.snapshots.list(query="first", page_size=100)
        self.assertEqual(([one.id for one in listed.items], listed.total_items), ([kept.id], 1))
        self.assertEqual(self.client.snapshots.list(query="none").total_items, 0)
        again = self.client.snapshots.restore(snapshot_name="first-one", timeout=120)
        self.addCleanup(self.client.sandboxes.delete, again)
        self.assertNotEqual(again.id, box.id)
        self.assertEqual((again.timeout, again.state.value, again.memory), (120, "running", 512))
        self.assertEqual(again.network_policy, {"mode": "deny-all"}, "a snapshot keeps the policy of its sandbox")
        self.assertEqual(again.filesystem.read_file(path="/var/tmp/kept"), "kept")
        wider = {"mode": "custom", "allow_domains": ["example.com"]}
        other = self.client.snapshots.restore(snapshot_name=kept.id, network_policy=wider)
        self.addCleanup(self.client.sandboxes.delete, other)
        self.assertEqual(other.network_policy, wider)

    def test_a_snapshot_can_take_its_sandbox_along(self):
        box = self.client.sandboxes.create(memory=512)
        kept = box.create_snapshot(kill_sandbox_after=True)
        self.assertTrue(kept.name)
        self.assertEqual(self.client.sandboxes.get(box.id).state.value, "deleted")
        self.client.snapshots.delete(kept)
        with self.assertRaises(Leap0NotFoundError):
            self.client.snapshots.restore(snapshot_name=kept.name)
        with self.assertRaises(Leap0NotFoundError):
            self.client.snapshots.delete(kept)
