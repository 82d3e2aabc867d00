"""Every public method of the SDK has a case here, or stands below with the reason why it cannot have one."""

import importlib
import inspect
import pathlib
import re
import unittest

from daytona import CreateSnapshotParams, DaytonaError, Image

from world import Shared, client, name, refused, until

MODULES = ["daytona", "sandbox", "filesystem", "process", "git", "lsp_server", "code_interpreter", "volume", "snapshot", "secret", "warm_pool"]
#: Of pydantic and of the generated models, and helpers that send nothing.
FOREIGN = {"copy", "dict", "json", "model_copy", "model_dump", "model_dump_json", "model_post_init", "to_dict", "to_json", "to_str",
           "process_image_context", "read", "readable", "readall", "close"}


class Surface(Shared):
    def test_every_public_method_has_a_case(self):
        said = "\n".join(p.read_text() for p in pathlib.Path(__file__).parent.glob("test_*.py"))
        missing = []
        for word in MODULES:
            module = importlib.import_module(f"daytona._sync.{word}")
            for label, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ != module.__name__:
                    continue
                for method, found in inspect.getmembers(kind, inspect.isfunction):
                    if method.startswith("_") or method in FOREIGN or not callable(found):
                        continue
                    if not re.search(rf"\.{method}\b", said):
                        missing.append(f"{label}.{method}")
        self.assertEqual(missing, [])

    def test_what_is_not_here_says_so(self):
        """No template has a display: docs/fronts/daytona.md."""
        use = self.box.computer_use
        for ask in (use.start, use.stop, use.get_status, use.mouse.get_position, use.screenshot.take_full_screen, use.display.get_info,
                    use.recording.list, lambda: use.keyboard.type("x"), use.accessibility.get_tree):
            with self.assertRaises(DaytonaError) as said:
                ask()
            self.assertIn("docs/fronts/daytona.md", str(said.exception))

    def test_metrics_over_time_are_of_this_sandbox(self):
        found = until("a first sample is written", lambda: self.box.get_metrics(), within=120)
        self.assertEqual({m.cpu_count for m in found}, {self.box.cpu})
        self.assertTrue(all(m.mem_used > 0 and m.mem_total == self.box.memory << 30 for m in found), found)

    def test_a_warm_pool_of_ones_own_snapshot(self):
        word = name("warm")
        made = client().snapshot.create(CreateSnapshotParams(name=word, image=Image.base("debian").env({"W": "1"})), timeout=60)
        pool = client().warm_pool.create(word, 1)
        self.assertEqual((pool.snapshot, pool.pool), (word, 1))
        self.assertIn(pool.id, [p.id for p in client().warm_pool.list()])
        self.assertEqual(client().warm_pool.update(pool.id, 2).pool, 2)
        client().warm_pool.delete(pool.id)
        self.assertNotIn(pool.id, [p.id for p in client().warm_pool.list()])
        client().snapshot.delete(made)
        with refused(400):
            client().warm_pool.create("daytona", 1)  # those for everybody are the operator's

if __name__ == "__main__":
    unittest.main()
