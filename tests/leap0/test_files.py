"""Every call of the filesystem, with names and contents that are not plain."""

from leap0 import FileEdit, Leap0ConflictError, Leap0Error, Leap0NotFoundError, Leap0PermissionError

from world import Shared


class Files(Shared):
    def setUp(self):
        self.fs = self.box.filesystem
        self.dir = f"/tmp/{self.id().rsplit('.', 1)[1]}"
        self.fs.mkdir(path=self.dir, recursive=True)

    def at(self, name):
        return f"{self.dir}/{name}"

    def test_bytes_come_back_as_they_went(self):
        every = bytes(range(256)) * 3 + b"\r\n"
        self.fs.write_bytes(path=self.at("a b+c.bin"), content=every, permissions="600")
        self.assertEqual(self.fs.read_bytes(path=self.at("a b+c.bin")), every)
        self.assertEqual(self.fs.stat(path=self.at("a b+c.bin")).mode, "600")
        self.assertEqual(self.fs.read_bytes(path=self.at("a b+c.bin"), offset=10, limit=5), every[10:15])
        self.assertEqual(self.fs.read_bytes(path=self.at("a b+c.bin"), offset=len(every)), b"")
        self.fs.write_file(path=self.at("deep/er/é.txt"), content="é\n")
        self.assertEqual(self.fs.read_file(path=self.at("deep/er/é.txt")), "é\n")

    def test_lines_from_either_end(self):
        self.fs.write_file(path=self.at("lines"), content="".join(f"{n}\n" for n in range(100)))
        self.assertEqual(self.fs.read_file(path=self.at("lines"), head=2), "0\n1\n")
        self.assertEqual(self.fs.read_file(path=self.at("lines"), tail=2), "98\n99\n")

    def test_several_files_at_once(self):
        files = {self.at("one.bin"): b"\x00\xff--\r\nx", self.at("two.bin"): b"", self.at("sub/three.bin"): b"3\n"}
        self.fs.write_files_bytes(files=files)
        self.assertEqual(self.fs.read_files_bytes(paths=list(files)), files)
        with self.assertRaises(Leap0NotFoundError):
            self.fs.read_files_bytes(paths=[self.at("one.bin"), self.at("none")])

    def test_a_large_file_streams(self):
        large = b"0123456789abcdef" * (1 << 20)
        self.fs.write_bytes(path=self.at("large"), content=large)
        self.assertEqual(self.fs.stat(path=self.at("large")).size, len(large))
        self.assertEqual(self.fs.read_bytes(path=self.at("large")), large)

    def test_what_a_directory_holds(self):
        self.fs.write_files(files={self.at("a.py"): "x", self.at("b.txt"): "yy", self.at("sub/c.py"): "zzz"})
        self.box.process.execute(command=f"ln -s a.py {self.at('link')}")
        plain = {item.name: item for item in self.fs.ls(path=self.dir).items}
        self.assertEqual(sorted(plain), ["a.py", "b.txt", "link", "sub"])
        self.assertTrue(plain["sub"].is_dir and plain["link"].is_symlink)
        self.assertEqual((plain["link"].link_target, plain["b.txt"].size), ("a.py", 2))
        self.assertEqual(plain["b.txt"].path, self.at("b.txt"))
        self.assertGreater(plain["b.txt"].mtime, 1_500_000_000)
        deep = [item.path for item in self.fs.ls(path=self.dir, recursive=True, exclude=["*.txt"]).items]
        self.assertEqual(sorted(deep), [self.at(name) for name in ("a.py", "link", "sub", "sub/c.py")])
        tree = {entry.name: entry for entry in self.fs.tree(path=self.dir).items}
        self.assertEqual((tree["sub"].type, tree["sub"].children[0].name), ("directory", "c.py"))

    def test_search_by_name_and_by_content(self):
        self.fs.write_files(files={self.at("a.py"): "import os\nneedle = 1\n", self.at("sub/b.py"): "no\n", self.at("c.txt"): "needle\n"})
        self.assertEqual(sorted(self.fs.glob(path=self.dir, pattern="**/*.py")), [self.at("a.py"), self.at("sub/b.py")])
        found = self.fs.grep(path=self.dir, pattern="need.e", include="*.py")
        self.assertEqual([(hit.path, hit.line, hit.content) for hit in found], [(self.at("a.py"), 2, "needle = 1")])

    def test_edits_say_what_they_changed(self):
        self.fs.write_file(path=self.at("e.txt"), content="one two one\n")
        done = self.fs.edit_file(path=self.at("e.txt"), edits=[FileEdit(find="one", replace="1")])
        self.assertEqual(self.fs.read_file(path=self.at("e.txt")), "1 two 1\n")
        self.assertEqual(done.replacements, 2)
        self.assertIn("+1 two 1", done.diff)
        results = self.fs.edit_files(paths=[self.at("e.txt"), self.at("none")], find="two", replace="2")
        self.assertEqual([one.success for one in results], [True, False])
        self.assertTrue(results[1].error)

    def test_move_copy_and_delete(self):
        self.fs.write_file(path=self.at("from"), content="x")
        self.fs.copy(src_path=self.at("from"), dst_path=self.at("copy"))
        with self.assertRaises(Leap0ConflictError):
            self.fs.copy(src_path=self.at("from"), dst_path=self.at("copy"))
        self.fs.copy(src_path=self.at("from"), dst_path=self.at("copy"), overwrite=True)
        with self.assertRaises(Leap0ConflictError):
            self.fs.move(src_path=self.at("from"), dst_path=self.at("copy"))
        self.fs.move(src_path=self.at("from"), dst_path=self.at("copy"), overwrite=True)
        self.assertFalse(self.fs.exists(path=self.at("from")))
        self.fs.mkdir(path=self.at("d/e"), recursive=True)
        with self.assertRaises(Leap0Error):
            self.fs.delete(path=self.at("d"))
        self.fs.copy(src_path=self.at("d"), dst_path=self.at("d2"), recursive=True)
        self.fs.delete(path=self.at("d"), recursive=True)
        self.assertEqual([self.fs.exists(path=self.at(name)) for name in ("d", "d2/e")], [False, True])

    def test_permissions(self):
        self.fs.write_file(path=self.at("p"), content="x")
        self.fs.set_permissions(path=self.at("p"), mode="640")
        self.assertEqual(self.fs.stat(path=self.at("p")).mode, "640")
        self.fs.mkdir(path=self.at("q"), permissions="700")
        self.assertEqual(self.fs.stat(path=self.at("q")).mode, "700")

    def test_refusals_have_the_class_that_the_sdk_gives_them(self):
        with self.assertRaises(Leap0NotFoundError):
            self.fs.read_file(path=self.at("none"))
        with self.assertRaises(Leap0NotFoundError):
            self.fs.stat(path=self.at("none"))
        with self.assertRaises(Leap0Error) as caught:
            self.fs.read_file(path=self.dir)
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("is a directory", str(caught.exception))
        with self.assertRaises(Leap0PermissionError):
            self.fs.set_permissions(path="/proc/version", mode="600")

    def test_operations_act_as_root_and_what_they_make_is_the_users(self):
        def run(line):
            return self.box.process.execute(command=line).stdout

        who = run("id -un").strip()
        self.fs.write_file(path="/opt/new/tool", content="x")
        self.fs.write_files(files={"/srv/one": "1", "/srv/two": "2"})
        self.fs.mkdir(path="/srv/folder")
        self.fs.copy(src_path="/etc/shadow", dst_path="/srv/copied")
        made = ["/opt/new", "/opt/new/tool", "/srv/one", "/srv/folder", "/srv/copied"]
        self.assertEqual([self.fs.stat(path=path).owner for path in made], [who] * len(made))
        self.assertIn("root:", self.fs.read_file(path="/etc/shadow"))
        self.fs.set_permissions(path="/srv/one", owner="root", group="root", mode="600")
        found = self.fs.stat(path="/srv/one")
        self.assertEqual((found.owner, found.group, found.mode), ("root", "root", "600"))
        self.assertEqual(self.fs.read_file(path="/srv/one"), "1")
        self.fs.edit_file(path="/srv/one", edits=[FileEdit(find="1", replace="11")])
        self.fs.move(src_path="/srv/one", dst_path="/opt/moved")
        self.fs.delete(path="/opt/moved")
        self.assertFalse(self.fs.exists(path="/opt/moved"))
