"""`files.watch_dir`, as the blocking half of the SDK asks for events."""

from e2b import FilesystemEventType as T, SandboxException
from world import Shared, until


class Watch(Shared):
    def folder(self, name):
        self.box.files.make_dir(f"/tmp/watch/{name}")
        return f"/tmp/watch/{name}"

    def gather(self, handle, enough):
        """Events until a predicate over all of them holds."""
        events = []

        def more():
            events.extend(handle.get_new_events())
            return enough(events)

        until("the events come", more)
        return events

    def kinds(self, events, name):
        return [event.type for event in events if event.name == name]

    def test_a_new_file_is_created_and_written(self):
        folder = self.folder("new")
        handle = self.box.files.watch_dir(folder)
        self.box.files.write(f"{folder}/x", "content")
        events = self.gather(handle, lambda seen: T.WRITE in self.kinds(seen, "x"))
        self.assertEqual(self.kinds(events, "x")[0], T.CREATE)
        handle.stop()

    def test_every_kind_of_change_has_its_name(self):
        folder = self.folder("kinds")
        self.box.files.write(f"{folder}/x", "1")
        handle = self.box.files.watch_dir(folder)
        self.box.commands.run("echo 2 >> x && chmod 600 x && mv x y && rm y", cwd=folder)
        events = self.gather(handle, lambda seen: T.REMOVE in self.kinds(seen, "y"))
        self.assertIn(T.WRITE, self.kinds(events, "x"))
        self.assertIn(T.CHMOD, self.kinds(events, "x"))
        self.assertIn(T.RENAME, self.kinds(events, "x"))
        handle.stop()

    def test_folders_below_are_watched_when_asked(self):
        folder = self.folder("deep")
        self.box.files.make_dir(f"{folder}/sub")
        flat, deep = self.box.files.watch_dir(folder), self.box.files.watch_dir(folder, recursive=True)
        self.box.files.write(f"{folder}/sub/x", "1")
        self.box.files.write(f"{folder}/last", "1")
        self.gather(deep, lambda seen: T.CREATE in self.kinds(seen, "sub/x"))
        seen = self.gather(flat, lambda seen: T.CREATE in self.kinds(seen, "last"))
        self.assertEqual(self.kinds(seen, "sub/x"), [])
        # A folder that comes later is watched as well.
        self.box.commands.run("mkdir -p later/on && sleep 0.3 && touch later/on/y", cwd=folder)
        self.gather(deep, lambda seen: "later/on/y" in [event.name for event in seen])
        flat.stop()
        deep.stop()

    def test_entries_come_along_when_asked(self):
        folder = self.folder("entries")
        handle = self.box.files.watch_dir(folder, include_entry=True, allow_network_mounts=True)
        self.box.files.write(f"{folder}/x", "12345")
        events = self.gather(handle, lambda seen: T.WRITE in self.kinds(seen, "x"))
        entries = [event.entry for event in events if event.entry]
        self.assertEqual((entries[-1].path, entries[-1].owner), (f"{folder}/x", "user"))
        handle.stop()

    def test_nothing_is_lost_under_load(self):
        folder = self.folder("load")
        handle = self.box.files.watch_dir(folder)
        self.box.commands.run("for i in $(seq 1 1500); do : > f$i; done", cwd=folder)
        wanted = {f"f{n}" for n in range(1, 1501)}
        created = lambda seen: {event.name for event in seen if event.type == T.CREATE}
        events = self.gather(handle, lambda seen: created(seen) >= wanted)
        self.assertEqual(created(events), wanted)
        self.assertEqual(len([event for event in events if event.type == T.CREATE]), 1500)
        handle.stop()

    def test_what_was_stopped_tells_no_more(self):
        folder = self.folder("stopped")
        handle = self.box.files.watch_dir(folder)
        handle.stop()
        with self.assertRaises(SandboxException):
            handle.get_new_events()
        with self.assertRaises(Exception):
            handle.stop()
