"""Every public method of the SDK has a case here, or stands below with the reason why it cannot have one."""

import importlib
import inspect
import pathlib
import re
import unittest

from daytona import DaytonaError

from world import Shared

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
        """No template has a display, and secrets are put into requests by policy: docs/fronts/daytona.md."""
        use = self.box.computer_use
        for ask in (use.start, use.stop, use.get_status, use.mouse.get_position, use.screenshot.take_full_screen, use.display.get_info,
                    use.recording.list, lambda: use.keyboard.type("x"), use.accessibility.get_tree):
            with self.assertRaises(DaytonaError) as refused:
                ask()
            self.assertIn("docs/fronts/daytona.md", str(refused.exception))

    def test_metrics_over_time(self):
        try:
            found = self.box.get_metrics()
        except DaytonaError as error:
            self.assertTrue(str(error))
        else:
            self.assertIsInstance(found, list)

    def test_warm_pools_and_secrets_of_a_sandbox_answer(self):
        from world import client

        pools = client().warm_pool if hasattr(client(), "warm_pool") else None
        if pools is not None:
            try:
                made = pools.create(self.box.snapshot or "daytona", 1)
                self.assertIn(made.id, [p.id for p in pools.list()])
                pools.update(made.id, 2)
                pools.delete(made.id)
            except DaytonaError as refused:
                self.assertIn("docs/fronts/daytona.md", str(refused))
        try:
            self.box.update_secrets({})
        except DaytonaError as refused:
            self.assertTrue(str(refused))


if __name__ == "__main__":
    unittest.main()
