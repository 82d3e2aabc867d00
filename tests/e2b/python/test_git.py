"""`sandbox.git`: commands underneath, so what they leave in the repository is what counts."""

from e2b import CommandExitException, GitAuthException, GitUpstreamException
from world import Shared, listens


class Git(Shared):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box.git.configure_user("Tester", "tester@example.test")

    def repository(self, name):
        path = f"/home/user/{name}"
        self.box.git.init(path, initial_branch="main")
        return path

    def committed(self, name):
        """A repository with one commit that holds the file `a`."""
        path = self.repository(name)
        self.box.files.write(f"{path}/a", "one\n")
        self.box.git.add(path)
        self.box.git.commit(path, "first")
        return path

    def log(self, path):
        return self.sh(f"git -C {path} log --format=%s").split()

    def test_a_commit_has_its_author_and_its_files(self):
        path = self.repository("commit")
        self.box.files.write(f"{path}/a b", "x")
        self.box.files.write(f"{path}/left", "x")
        self.box.git.add(path, files=["a b"])
        self.box.git.commit(path, "it's \"quoted\"", author_name="Än Other", author_email="o@example.test")
        self.assertEqual(self.sh(f"git -C {path} log --format='%an|%ae|%s'").strip(), "Än Other|o@example.test|it's \"quoted\"")
        self.assertEqual(self.sh(f"git -C {path} ls-files"), "a b\n")
        self.box.git.commit(path, "empty", allow_empty=True)
        self.assertEqual(self.log(path)[0], "empty")
        with self.assertRaises(CommandExitException):
            self.box.git.commit(path, "nothing staged")

    def test_status_tells_every_kind_of_change(self):
        path = self.committed("status")
        self.assertTrue(self.box.git.status(path).is_clean)
        self.box.files.write(f"{path}/a", "two\n")
        self.box.files.write(f"{path}/new", "x")
        self.box.files.write(f"{path}/staged", "x")
        self.box.git.add(path, files=["staged"])
        status = self.box.git.status(path)
        self.assertEqual(status.current_branch, "main")
        by_name = {file.name: file for file in status.file_status}
        self.assertEqual(sorted(by_name), ["a", "new", "staged"])
        self.assertTrue(by_name["staged"].staged)
        self.assertFalse(by_name["a"].staged)
        self.assertTrue(status.has_staged and status.has_untracked)

    def test_branches_come_and_go(self):
        path = self.committed("branches")
        self.box.git.create_branch(path, "topic/ünï")
        self.assertEqual(self.box.git.branches(path).current_branch, "topic/ünï")
        self.box.git.checkout_branch(path, "main")
        found = self.box.git.branches(path)
        self.assertEqual((found.current_branch, sorted(found.branches)), ("main", ["main", "topic/ünï"]))
        self.box.git.delete_branch(path, "topic/ünï", force=True)
        self.assertEqual(self.sh(f"git -C {path} branch --format='%(refname:short)'"), "main\n")
        with self.assertRaises(CommandExitException):
            self.box.git.checkout_branch(path, "no-such-branch")

    def test_commits_travel_by_push_clone_and_pull(self):
        path = self.committed("travel")
        self.box.git.init("/home/user/hub.git", bare=True, initial_branch="main")
        self.box.git.remote_add(path, "origin", "/home/user/hub.git", fetch=True)
        self.assertEqual(self.box.git.remote_get(path, "origin"), "/home/user/hub.git")
        self.assertIsNone(self.box.git.remote_get(path, "nobody"))
        self.box.git.push(path, remote="origin", branch="main")
        self.box.git.clone("/home/user/hub.git", path="/home/user/cloned", branch="main", depth=1)
        self.assertEqual(self.box.files.read("/home/user/cloned/a"), "one\n")
        self.box.files.write(f"{path}/a", "two\n")
        self.box.git.add(path)
        self.box.git.commit(path, "second")
        self.box.git.push(path)
        self.box.git.pull("/home/user/cloned")
        self.assertEqual(self.box.files.read("/home/user/cloned/a"), "two\n")
        self.box.git.remote_add(path, "origin", "/nowhere", overwrite=True)
        self.assertEqual(self.box.git.remote_get(path, "origin"), "/nowhere")

    def test_reset_and_restore_bring_back(self):
        path = self.committed("reset")
        self.box.files.write(f"{path}/a", "two\n")
        self.box.git.add(path)
        self.box.git.commit(path, "second")
        self.box.git.reset(path, mode="hard", target="HEAD~1")
        self.assertEqual((self.box.files.read(f"{path}/a"), self.log(path)), ("one\n", ["first"]))
        self.box.files.write(f"{path}/a", "spoiled\n")
        self.box.git.restore(path, paths=["a"])
        self.assertEqual(self.box.files.read(f"{path}/a"), "one\n")

    def test_configuration_has_its_scopes(self):
        path = self.committed("config")
        self.box.git.set_config("pull.rebase", "true", scope="local", path=path)
        self.assertEqual(self.box.git.get_config("pull.rebase", scope="local", path=path), "true")
        self.assertIsNone(self.box.git.get_config("pull.rebase"))
        self.assertEqual(self.box.git.get_config("user.email"), "tester@example.test")
        self.assertEqual(self.sh("git config --global user.name"), "Tester\n")

    def test_a_branch_without_upstream_is_told(self):
        path = self.committed("upstream")
        self.box.git.remote_add(path, "origin", "/home/user/nowhere.git")
        with self.assertRaises(GitUpstreamException):
            self.box.git.pull(path)

    def test_a_server_that_wants_a_password_is_told_and_credentials_are_sent(self):
        guard = (
            "import http.server as h\n"
            "class G(h.BaseHTTPRequestHandler):\n"
            "    def do_GET(self):\n"
            "        open('/tmp/asked', 'a').write(self.headers.get('authorization', 'none') + '\\n')\n"
            "        self.send_response(401); self.send_header('www-authenticate', 'Basic realm=\"x\"')\n"
            "        self.send_header('content-length', '0'); self.end_headers()\n"
            "h.HTTPServer(('127.0.0.1', 8990), G).serve_forever()\n"
        )
        self.box.files.write("/tmp/guard.py", guard)
        self.box.commands.run("setsid python3 /tmp/guard.py >/dev/null 2>&1 </dev/null &")
        listens(self.box, 8990)
        with self.assertRaises(GitAuthException):
            self.box.git.clone("http://127.0.0.1:8990/x.git", path="/tmp/never")
        self.box.git.dangerously_authenticate("who", "s3cret", host="127.0.0.1:8990", protocol="http")
        with self.assertRaises(GitAuthException):
            self.box.git.clone("http://127.0.0.1:8990/x.git", path="/tmp/never")
        self.assertIn("Basic d2hvOnMzY3JldA==", self.box.files.read("/tmp/asked"))
