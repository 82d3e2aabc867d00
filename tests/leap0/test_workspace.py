"""The working directory, templates from images, language servers and mounts of volumes."""

import os

import httpx
from leap0 import Leap0ConflictError, Leap0Error, Leap0NotFoundError

from world import Case, Shared, key

WORK = "/workspace"


def native(method, path, **more):
    """The server's own API, with the same key."""
    base = os.environ["LEAP0_BASE_URL"].removesuffix("/leap0")
    answer = httpx.request(method, f"{base}{path}", headers={"authorization": f"Bearer {key()}"}, timeout=60, **more)
    assert answer.status_code < 300, answer.text
    return answer


class Workspace(Case):
    def test_workspace_is_there_and_writable_and_where_commands_start(self):
        box = self.sandbox()
        self.assertEqual(box.get_workdir(), WORK)
        self.assertEqual(box.process.execute(command="pwd && touch made-by-a-command && ls").stdout,
                         f"{WORK}\nmade-by-a-command\n")
        box.filesystem.write_file(path=f"{WORK}/app.py", content="print('hello')\n")
        self.assertEqual(box.process.execute(command="python3 app.py").stdout, "hello\n")
        box.filesystem.write_files_bytes(files={f"{WORK}/a.bin": b"a", f"{WORK}/b.bin": b"b"})
        self.assertIn("b.bin", box.process.execute(command=f"ls -la {WORK}").stdout)
        connection = box.pty.connect(box.pty.create().id)
        connection.send("pwd; echo end-$((1+1))\n")
        seen = b""
        while b"end-2" not in seen:
            seen += connection.recv()
        connection.close()
        self.assertIn(WORK.encode(), seen)

    def test_relative_paths_start_there(self):
        box = self.sandbox()
        fs = box.filesystem
        fs.write_file(path="sub/one.txt", content="one\n")
        fs.write_files(files={"sub/two.txt": "two\n"})
        self.assertEqual(fs.read_file(path=f"{WORK}/sub/one.txt"), "one\n")
        self.assertEqual(fs.read_file(path="sub/two.txt"), "two\n")
        self.assertEqual(sorted(item.path for item in fs.ls(path="sub").items),
                         [f"{WORK}/sub/one.txt", f"{WORK}/sub/two.txt"])
        fs.move(src_path="sub/two.txt", dst_path="moved.txt")
        self.assertTrue(fs.exists(path=f"{WORK}/moved.txt"))
        self.assertEqual(box.process.execute(command="cat one.txt", cwd="sub").stdout, "one\n")

    def test_it_is_there_in_snapshots_and_after_a_stop(self):
        box = self.sandbox()
        box.filesystem.write_file(path=f"{WORK}/kept.txt", content="kept")
        native("POST", f"/v1/sandboxes/{box.id}/stop")
        native("POST", f"/v1/sandboxes/{box.id}/start")
        self.assertEqual(box.process.execute(command="cat kept.txt && touch more").stdout, "kept")


class Templates(Case):
    """The image is one that tests/tests/leap0.rs put into a registry; it names no working directory."""

    image = os.environ.get("LEAP0_TEST_IMAGE", "")

    def forget(self, *names):
        for name in names:
            try:
                self.client.templates.delete(name)
            except Leap0NotFoundError:
                pass

    def test_a_template_is_made_from_an_image_renamed_and_deleted(self):
        made = self.client.templates.create(name="team/mine", uri=self.image)
        self.addCleanup(self.forget, "team/mine", "renamed", self.image)
        self.assertEqual((made.id, made.name, made.is_system), ("team/mine", "team/mine", False))
        self.assertTrue(made.digest.startswith("sha256:") and made.created_at.endswith("Z"))
        box = self.client.sandboxes.create(template_name=made.id, memory=512)
        try:
            self.assertEqual(box.process.execute(command="cat /etc/mark; pwd").stdout, f"of the image\n{WORK}\n")
            with self.assertRaises(Leap0ConflictError):
                self.client.templates.create(name="team/mine", uri=self.image)
            with self.assertRaises(Leap0ConflictError):
                self.client.templates.rename(made.id, name="debian")
            self.client.templates.rename(made.id, name="renamed")
            with self.assertRaises(Leap0NotFoundError):
                self.client.sandboxes.create(template_name="team/mine")
            other = self.sandbox(template_name="renamed", memory=512)
            self.assertEqual(other.process.execute(command="cat /etc/mark").stdout, "of the image\n")
            self.assertEqual(box.process.execute(command="cat /etc/mark").stdout, "of the image\n")
            # What runs goes on under its own name, also after a stop.
            native("POST", f"/v1/sandboxes/{box.id}/stop")
            native("POST", f"/v1/sandboxes/{box.id}/start")
            self.assertEqual(box.process.execute(command="cat /etc/mark").stdout, "of the image\n")
            with self.assertRaises(Leap0ConflictError):
                self.client.templates.delete("renamed")
        finally:
            box.delete()

    def test_a_rename_moves_one_tag(self):
        for tag in ("one", "two"):
            made = self.client.templates.create(name=f"tagged:{tag}", uri=self.image)
            self.assertEqual(made.id, f"tagged:{tag}")
        self.addCleanup(self.forget, "tagged", "moved", self.image)
        with self.assertRaises(Leap0ConflictError):
            self.client.templates.rename("tagged:one", name="debian")
        self.client.templates.rename("tagged:one", name="moved")
        self.client.templates.rename("moved", name="moved")
        self.sandbox(template_name="moved", memory=512)
        self.sandbox(template_name="tagged:two", memory=512)
        with self.assertRaises(Leap0NotFoundError):
            self.client.sandboxes.create(template_name="tagged:one")
        with self.assertRaises(Leap0NotFoundError):
            self.client.templates.rename("tagged:one", name="other")

    def test_what_cannot_be_made_says_why(self):
        with self.assertRaises(Leap0NotFoundError):
            self.client.templates.create(name="none", uri=self.image.rsplit("/", 1)[0] + "/none:1")
        for name, status in (("debian", 409), ("Upper", 400)):
            with self.assertRaises(Leap0Error) as caught:
                self.client.templates.create(name=name, uri=self.image)
            self.assertEqual(caught.exception.status_code, status, caught.exception)
        aws = {"type": "aws", "aws_access_key_id": "canary-id", "aws_secret_access_key": "canary-of-a-key"}
        with self.assertRaises(Leap0Error) as caught:
            self.client.templates.create(name="of-aws", uri=self.image, credentials=aws)
        self.assertEqual(caught.exception.status_code, 501)
        self.assertNotIn("canary", caught.exception.body)
        with self.assertRaises(Leap0NotFoundError):
            self.client.templates.rename("none", name="other")


class LanguageServer(Shared):
    ask = {"template_name": "system/code-interpreter:v0.1.0", "memory": 2048, "timeout": 600}

    def test_a_python_server_answers(self):
        project = {"language_id": "python", "path_to_project": f"{WORK}/project"}
        text = "import os\n\n\ndef find_me():\n    return os.getcw\n"
        self.box.filesystem.write_file(path=f"{WORK}/project/main.py", content=text)
        lsp = self.box.lsp
        self.assertTrue(lsp.start(**project).success)
        lsp.did_open_path(path=f"{WORK}/project/main.py", **project)
        symbols = lsp.document_symbols_path(path=f"{WORK}/project/main.py", **project)
        self.assertEqual(symbols.jsonrpc, "2.0")
        self.assertIn("find_me", [symbol["name"] for symbol in symbols.result])
        items = lsp.completions_path(path=f"{WORK}/project/main.py", line=4, character=19, **project).result or []
        self.assertIn("getcwd", " ".join(item["label"] for item in items[:5]))
        # A text of one's own in place of what the file holds.
        lsp.did_open_path(path=f"{WORK}/project/new.py", text="def unsaved(): pass\n", version=3, **project)
        symbols = lsp.document_symbols_path(path=f"{WORK}/project/new.py", **project)
        self.assertEqual([symbol["name"] for symbol in symbols.result], ["unsaved"])
        lsp.did_close_path(path=f"{WORK}/project/main.py", **project)
        self.assertTrue(lsp.stop(**project).success)
        with self.assertRaises(Leap0NotFoundError):
            lsp.stop(**project)

    def test_a_language_without_a_server_is_refused(self):
        with self.assertRaises(Leap0Error) as caught:
            self.box.lsp.start(language_id="cobol", path_to_project=WORK)
        self.assertEqual(caught.exception.status_code, 400)


class Mounts(Case):
    def test_a_volume_is_mounted_by_the_fields_of_a_bucket(self):
        native("POST", "/v1/volumes", json={"name": "shelf", "size_mib": 64})
        self.addCleanup(native, "DELETE", "/v1/volumes/shelf")
        mount = {"type": "object-storage", "bucket": "shelf", "mount_path": "/data", "endpoint": "atoll://volumes"}
        box = self.client.sandboxes.create(mounts=[mount])
        try:
            self.assertEqual([(one.bucket, one.mount_path, one.read_only) for one in box.mounts], [("shelf", "/data", False)])
            self.assertTrue(box.mounts[0].id)
            done = box.process.execute(command="mkdir /data/a && echo hello >/data/a/note")
            self.assertEqual(done.exit_code, 0, done.stderr)
        finally:
            box.delete()
        again = self.client.sandboxes.create(mounts=[{**mount, "prefix": "a/", "read_only": True}])
        try:
            self.assertEqual((again.mounts[0].prefix, again.mounts[0].read_only), ("a/", True))
            self.assertEqual(self.client.sandboxes.get(again.id).mounts[0].bucket, "shelf")
            self.assertEqual(again.process.execute(command="cat /data/note").stdout, "hello\n")
            self.assertNotEqual(again.process.execute(command="touch /data/more").exit_code, 0)
        finally:
            again.delete()
        with self.assertRaises(Leap0NotFoundError):
            self.client.sandboxes.create(mounts=[{**mount, "bucket": "none"}])
