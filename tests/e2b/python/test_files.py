"""`sandbox.files`: content of every kind and size, folders, links, users, and what goes wrong."""

import concurrent.futures
import datetime
import hashlib
import io

from e2b import AuthenticationException, FileNotFoundException, FileType, InvalidArgumentException, Sandbox, SandboxException
from world import Shared, until

MB = 1 << 20


class Content(Shared):
    def test_text_is_read_as_it_was_written(self):
        info = self.box.files.write("/tmp/a/b/c.txt", "línea\r\n日本")
        self.assertEqual((info.name, info.path, info.type), ("c.txt", "/tmp/a/b/c.txt", FileType.FILE))
        self.assertEqual(self.box.files.read("/tmp/a/b/c.txt"), "línea\r\n日本")
        self.assertEqual(self.sh("stat -c '%U %a' /tmp/a/b/c.txt /tmp/a/b"), "user 644\nuser 755\n")
        self.box.files.write("/tmp/a/b/c.txt", "short")
        self.assertEqual(self.sh("cat /tmp/a/b/c.txt"), "short")

    def test_every_byte_survives(self):
        every = bytes(range(256)) * 300
        self.box.files.write("/tmp/bytes", every)
        self.assertEqual(bytes(self.box.files.read("/tmp/bytes", format="bytes")), every)
        self.assertIn(hashlib.sha256(every).hexdigest(), self.sh("sha256sum /tmp/bytes"))

    def test_an_empty_file_is_a_file(self):
        for n, octets in enumerate((None, True)):
            self.box.files.write(f"/tmp/empty{n}", "", use_octet_stream=octets)
            self.assertEqual(self.box.files.read(f"/tmp/empty{n}"), "")
            self.assertEqual(bytes(self.box.files.read(f"/tmp/empty{n}", format="bytes")), b"")
            self.assertEqual(b"".join(self.box.files.read(f"/tmp/empty{n}", format="stream")), b"")
            self.assertEqual(self.sh(f"stat -c %s /tmp/empty{n}"), "0\n")

    def test_names_of_every_script_are_names(self):
        for name in ("ein Name", "日本語 🎉.txt", "a'b\"c", "100%&+?#=.txt", "-rf", "back\\slash"):
            path = f"/tmp/names/{name}"
            self.box.files.write(path, name)
            self.assertEqual(self.box.files.read(path), name)
            self.assertEqual(self.box.files.get_info(path).name, name)
        self.assertEqual(len(self.box.files.list("/tmp/names")), 6)

    def test_a_hundred_megabytes_go_in_and_come_out_as_a_stream(self):
        piece = hashlib.sha256(b"piece").digest() * 32768  # 1 MiB
        self.box.files.write("/tmp/large", (piece for _ in range(100)))
        whole = hashlib.sha256()
        for _ in range(100):
            whole.update(piece)
        self.assertIn(whole.hexdigest(), self.sh("sha256sum /tmp/large"))
        back, size = hashlib.sha256(), 0
        for chunk in self.box.files.read("/tmp/large", format="stream"):
            back.update(chunk)
            size += len(chunk)
        self.assertEqual((size, back.hexdigest()), (100 * MB, whole.hexdigest()))
        self.box.files.remove("/tmp/large")

    def test_a_stream_may_be_left_before_its_end(self):
        self.box.files.write("/tmp/left", b"x" * (8 * MB))
        with self.box.files.read("/tmp/left", format="stream") as stream:
            self.assertTrue(next(stream).startswith(b"x"))
        self.assertEqual(self.sh("stat -c %s /tmp/left"), f"{8 * MB}\n")

    def test_file_objects_are_taken(self):
        self.box.files.write("/tmp/io", io.BytesIO(b"bytes of a file"))
        self.box.files.write("/tmp/text-io", io.StringIO("text of a file ä"))
        self.assertEqual(self.sh("cat /tmp/io /tmp/text-io"), "bytes of a filetext of a file ä")

    def test_compression_on_the_way_changes_nothing(self):
        text = "again and again " * 20_000
        self.box.files.write("/tmp/zipped", text, gzip=True)
        self.assertEqual(self.sh("md5sum < /tmp/zipped").split()[0], hashlib.md5(text.encode()).hexdigest())
        self.assertEqual(self.box.files.read("/tmp/zipped", gzip=True), text)
        with self.assertRaises(InvalidArgumentException):
            self.box.files.write("/tmp/zipped", "x", gzip=True, use_octet_stream=False)

    def test_metadata_stays_with_its_file(self):
        info = self.box.files.write("/tmp/noted", "x", metadata={"Author": "me", "kind": "draft"})
        self.assertEqual(info.metadata, {"author": "me", "kind": "draft"})
        self.assertEqual(self.box.files.get_info("/tmp/noted").metadata, {"author": "me", "kind": "draft"})
        self.box.files.rename("/tmp/noted", "/tmp/noted-again")
        self.assertEqual(self.box.files.get_info("/tmp/noted-again").metadata["kind"], "draft")
        self.box.files.write("/tmp/noted-again", "y", metadata={"only": "this"})
        self.assertEqual(self.box.files.get_info("/tmp/noted-again").metadata, {"only": "this"})
        with self.assertRaises(InvalidArgumentException):
            self.box.files.write("/tmp/noted", "x", metadata={"bad key": "x"})

    def test_paths_without_a_root_begin_at_home(self):
        self.assertEqual(self.box.files.write("rel/ative", "x").path, "/home/user/rel/ative")
        self.assertEqual(self.box.files.read("~/rel/ative"), "x")
        self.assertEqual(self.box.files.write("of-root", "y", user="root").path, "/root/of-root")

    def test_a_thousand_files_are_written_and_listed(self):
        entries = [{"path": f"/tmp/many/{n:04}", "data": f"content {n}"} for n in range(1000)]
        written = self.box.files.write_files(entries)
        self.assertEqual([info.name for info in written], [f"{n:04}" for n in range(1000)])
        self.assertEqual(self.sh("cat /tmp/many/* | md5sum").split()[0], hashlib.md5("".join(e["data"] for e in entries).encode()).hexdigest())
        listed = self.box.files.list("/tmp/many")
        self.assertEqual(sorted(info.name for info in listed), [f"{n:04}" for n in range(1000)])
        self.assertEqual(self.box.files.write_files([]), [])

    def test_many_writers_at_once_keep_apart(self):
        def one(n):
            client = Sandbox.connect(self.box.sandbox_id)
            client.files.write(f"/tmp/crowd/{n}", str(n) * 10_000)
            return client.files.read(f"/tmp/crowd/{n}") == str(n) * 10_000
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertEqual(list(pool.map(one, range(32))), [True] * 32)


class Folders(Shared):
    def test_a_folder_is_made_once_with_all_above_it(self):
        self.assertTrue(self.box.files.make_dir("/tmp/new/deep/er"))
        self.assertFalse(self.box.files.make_dir("/tmp/new/deep/er"))
        self.assertEqual(self.sh("stat -c '%U %F' /tmp/new/deep/er"), "user directory\n")
        self.box.files.write("/tmp/new/file", "x")
        with self.assertRaises(InvalidArgumentException):
            self.box.files.make_dir("/tmp/new/file")

    def test_lists_go_as_deep_as_asked(self):
        self.sh("mkdir -p /tmp/tree/a/b/c && touch /tmp/tree/1 /tmp/tree/a/2 /tmp/tree/a/b/3 && ln -s 1 /tmp/tree/link")
        names = lambda depth: sorted(info.path.removeprefix("/tmp/tree/") for info in self.box.files.list("/tmp/tree", depth=depth))
        self.assertEqual(names(1), ["1", "a", "link"])
        self.assertEqual(names(2), ["1", "a", "a/2", "a/b", "link"])
        self.assertEqual(names(9), ["1", "a", "a/2", "a/b", "a/b/3", "a/b/c", "link"])
        kinds = {info.name: info.type for info in self.box.files.list("/tmp/tree")}
        self.assertEqual((kinds["1"], kinds["a"]), (FileType.FILE, FileType.DIR))
        with self.assertRaises(InvalidArgumentException):
            self.box.files.list("/tmp/tree", depth=0)

    def test_info_is_what_the_system_says(self):
        self.sh("printf 12345 > /tmp/info && chmod 640 /tmp/info && touch -d '2020-02-02T02:02:02Z' /tmp/info")
        info = self.box.files.get_info("/tmp/info")
        self.assertEqual((info.name, info.path, info.type, info.size), ("info", "/tmp/info", FileType.FILE, 5))
        self.assertEqual((info.mode, info.permissions, info.owner, info.group), (0o640, "-rw-r-----", "user", "user"))
        self.assertEqual(info.modified_time.replace(tzinfo=None), datetime.datetime(2020, 2, 2, 2, 2, 2))
        self.assertIsNone(info.symlink_target)
        folder = self.box.files.get_info("/tmp")
        self.assertEqual((folder.type, folder.permissions[0]), (FileType.DIR, "d"))

    def test_a_link_tells_where_it_leads(self):
        self.sh("printf x > /tmp/target && ln -sf /tmp/target /tmp/pointer && ln -sf /nowhere /tmp/dangling")
        self.assertEqual(self.box.files.get_info("/tmp/pointer").symlink_target, "/tmp/target")
        self.assertEqual(self.box.files.read("/tmp/pointer"), "x")
        self.assertIn("dangling", [info.name for info in self.box.files.list("/tmp")])

    def test_existence_is_told_without_an_error(self):
        self.box.files.write("/tmp/there", "")
        answers = [self.box.files.exists(path) for path in ("/tmp/there", "/tmp", "/tmp/not-there", "/tmp/not/there")]
        self.assertEqual(answers, [True, True, False, False])

    def test_renaming_moves_files_and_folders(self):
        self.box.files.write("/tmp/from/x", "moved")
        info = self.box.files.rename("/tmp/from", "/tmp/to/somewhere/else")
        self.assertEqual((info.path, info.type), ("/tmp/to/somewhere/else", FileType.DIR))
        self.assertEqual(self.box.files.read("/tmp/to/somewhere/else/x"), "moved")
        self.assertFalse(self.box.files.exists("/tmp/from"))
        self.box.files.write("/tmp/over", "old")
        self.box.files.rename("/tmp/to/somewhere/else/x", "/tmp/over")
        self.assertEqual(self.box.files.read("/tmp/over"), "moved")

    def test_removing_takes_everything_below(self):
        self.box.files.write("/tmp/gone/deep/x", "")
        self.box.files.remove("/tmp/gone")
        self.assertEqual(self.sh("test -e /tmp/gone && echo there || echo gone"), "gone\n")
        self.box.files.remove("/tmp/gone")

    def test_what_is_missing_is_not_found(self):
        for call in (
            lambda: self.box.files.read("/tmp/missing"),
            lambda: self.box.files.list("/tmp/missing"),
            lambda: self.box.files.get_info("/tmp/missing"),
            lambda: self.box.files.rename("/tmp/missing", "/tmp/x"),
            lambda: self.box.files.watch_dir("/tmp/missing"),
            lambda: next(self.box.files.read("/tmp/missing", format="stream")),
        ):
            with self.assertRaises(FileNotFoundException):
                call()

    def test_what_is_of_the_wrong_kind_is_refused(self):
        self.box.files.write("/tmp/plain", "x")
        for call in (
            lambda: self.box.files.read("/tmp"),
            lambda: self.box.files.list("/tmp/plain"),
            lambda: self.box.files.watch_dir("/tmp/plain"),
            lambda: self.box.files.write("/tmp", "x"),
        ):
            with self.assertRaises(SandboxException):
                call()
        with self.assertRaises(SandboxException):
            self.box.files.write("/tmp/plain/below", "x")
        self.assertEqual(self.box.files.read("/tmp/plain"), "x")

    def test_users_own_what_they_write_and_unknown_ones_write_nothing(self):
        self.box.files.write("/tmp/roots", "x", user="root")
        self.assertEqual(self.sh("stat -c %U:%G /tmp/roots"), "root:root\n")
        self.assertTrue(self.box.files.make_dir("/tmp/roots-folder", user="root"))
        self.assertEqual(self.box.files.get_info("/tmp/roots-folder").owner, "root")
        for call in (
            lambda: self.box.files.write("/tmp/whose", "x", user="nobody-of-that-name"),
            lambda: self.box.files.read("/tmp/roots", user="nobody-of-that-name"),
            lambda: self.box.files.list("/tmp", user="nobody-of-that-name"),
        ):
            with self.assertRaises(AuthenticationException):
                call()
        self.assertFalse(self.box.files.exists("/tmp/whose"))

    def test_an_empty_folder_has_a_size(self):
        self.box.files.make_dir("/tmp/sizes/empty")
        self.assertGreater(self.box.files.get_info("/tmp/sizes/empty").size, 0)
        self.assertGreater(self.box.files.list("/tmp/sizes")[0].size, 0)


class RootFiles(Shared):
    """File operations act as root and give what they create to the user; commands run as the user."""

    def owner(self, *paths):
        return self.sh("stat -c %U:%G " + " ".join(paths), user="root").split()

    def root(self, line):
        return self.sh(line, user="root")

    def test_files_are_written_anywhere_and_are_the_users(self):
        for path in ("/opt/tool", "/code/deep/er/app.py", "/0/a"):
            self.assertEqual(self.box.files.write(path, "content").path, path)
            self.assertEqual(self.sh(f"cat {path} && echo more >> {path}"), "content", path)
        paths = ["/opt/tool", "/code", "/code/deep", "/code/deep/er/app.py", "/0", "/0/a"]
        self.assertEqual(self.owner(*paths), ["user:user"] * len(paths))
        self.assertEqual(self.owner("/opt"), ["root:root"])
        self.box.files.write_files([{"path": f"/many/{n}", "data": str(n)} for n in range(3)])
        self.assertEqual(self.owner("/many", "/many/0", "/many/2"), ["user:user"] * 3)
        self.box.files.write("/opt/of-root", "x", user="root")
        self.assertEqual(self.owner("/opt/of-root"), ["root:root"])

    def test_a_file_of_root_is_read_and_replaced(self):
        self.root("umask 077; printf secret > /root/secret; printf old > /opt/old; chmod 600 /opt/old")
        self.assertEqual(self.box.files.read("/root/secret"), "secret")
        self.assertEqual(self.box.files.get_info("/root/secret").owner, "root")
        self.assertTrue(self.box.files.exists("/root/secret"))
        self.assertIn("secret", [entry.name for entry in self.box.files.list("/root")])
        self.box.files.write("/opt/old", "new")
        self.assertEqual((self.sh("cat /opt/old"), self.owner("/opt/old")), ("new", ["user:user"]))
        self.assertEqual(self.sh("cat /root/secret 2>/dev/null || id -un"), "user\n")

    def test_folders_are_made_moved_and_removed_anywhere(self):
        self.assertTrue(self.box.files.make_dir("/srv/new/deep"))
        self.assertEqual(self.owner("/srv/new", "/srv/new/deep"), ["user:user"] * 2)
        self.root("umask 077; mkdir -p /root/kept/in && printf x > /root/kept/in/file")
        self.assertEqual(self.box.files.rename("/root/kept", "/srv/moved").path, "/srv/moved")
        self.assertEqual(self.owner("/srv/moved", "/srv/moved/in/file"), ["root:root"] * 2)
        self.box.files.remove("/srv/moved")
        self.assertEqual(self.root("ls /srv"), "new\n")
        # A folder of the template's own layers is copied when it is moved.
        self.box.files.rename("/etc/skel", "/srv/skel")
        self.assertEqual(self.owner("/srv/skel", "/srv/skel/.bashrc"), ["root:root"] * 2)

    def test_a_folder_of_root_is_watched(self):
        self.root("mkdir -m 700 -p /root/watched/sub")
        handle = self.box.files.watch_dir("/root/watched", recursive=True, include_entry=True)
        self.root("printf x > /root/watched/sub/file")
        events = []

        def seen():
            events.extend(handle.get_new_events())
            return [event for event in events if event.name == "sub/file" and event.entry]

        self.assertEqual(until("the write is seen", seen)[0].entry.owner, "root")
        handle.stop()

    def test_links_lead_to_files_of_root_and_stay_links(self):
        self.root("printf old > /root/behind && ln -sf /root/behind /home/user/link")
        self.box.files.write("link", "new")
        self.assertEqual(self.root("cat /root/behind; readlink /home/user/link"), "new/root/behind\n")

    def test_nothing_outside_of_the_sandbox_is_in_reach(self):
        for path in ("/proc/1/root/etc/passwd", "/proc/self/cwd/etc/passwd", "/.atoll/new", "/sys/new"):
            with self.assertRaises(SandboxException):
                self.box.files.write(path, "x")
        with self.assertRaises(SandboxException):
            self.box.files.read("/proc/1/root/etc/passwd")
