"""Git: a repository from its first commit to a push and back, by file and by HTTP, with and without a password."""

from daytona import (
    DaytonaConflictError,
    DaytonaError,
    DaytonaGitAuthFailedError,
    DaytonaGitBranchExistsError,
    DaytonaGitBranchNotFoundError,
    DaytonaGitDirtyWorktreeError,
    DaytonaGitMergeConflictError,
    DaytonaGitPushRejectedError,
    DaytonaGitRepoNotFoundError,
    DaytonaGitTransportFailedError,
    DaytonaNotFoundError,
)

from world import Shared, until

#: Git's own HTTP server, behind a password for whatever lies below /private/.
SERVER = r'''
import base64, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Git(BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        path, _, query = self.path.partition("?")
        wanted = "Basic " + base64.b64encode(b"ada:pa ss:w@rd").decode()
        if path.startswith("/private/") and self.headers.get("authorization") != wanted:
            self.send_response(401); self.send_header("www-authenticate", 'Basic realm="git"'); self.end_headers(); return
        length = self.headers.get("content-length")
        body = self.rfile.read(int(length)) if length else self.chunks()
        env = dict(os.environ, GIT_PROJECT_ROOT=sys.argv[1], GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path, QUERY_STRING=query,
                   REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("content-type", ""), REMOTE_USER="ada",
                   HTTP_CONTENT_ENCODING=self.headers.get("content-encoding", ""), CONTENT_LENGTH=str(len(body)))
        said = subprocess.run(["git", "http-backend"], input=body, stdout=subprocess.PIPE, env=env).stdout
        head, _, rest = said.partition(b"\r\n\r\n")
        lines = [l.decode().split(": ", 1) for l in head.split(b"\r\n")]
        status = next((int(v.split()[0]) for k, v in lines if k == "Status"), 200)
        self.send_response(status)
        for k, v in lines:
            if k != "Status": self.send_header(k, v)
        self.end_headers(); self.wfile.write(rest)
    def chunks(self):
        data = b""
        if self.headers.get("transfer-encoding") != "chunked": return data
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size); self.rfile.readline()
        return data
    do_POST = do_GET

ThreadingHTTPServer(("127.0.0.1", 8418), Git).serve_forever()
'''
SECRET = "pa ss:w@rd"


class Git(Shared):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box.fs.upload_file(SERVER.encode(), "/tmp/gitd.py")
        cls.box.process.exec(
            "mkdir -p /tmp/srv/private && cd /tmp/srv && git init -q --bare -b main open.git && git init -q --bare -b main private/own.git && "
            "for r in open private/own; do git -C $r.git config http.receivepack true; done && "
            "git init -q -b main /tmp/seed && cd /tmp/seed && git config user.name s && git config user.email s@x && "
            "echo one > a.txt && git add . && git commit -qm first && git branch topic && echo two > a.txt && git commit -qam second && "
            "for r in open private/own; do git push -q /tmp/srv/$r.git main topic; done && "
            "(nohup python3 /tmp/gitd.py /tmp/srv >/tmp/gitd.log 2>&1 &)")
        until("git answers", lambda: cls.box.process.exec("git ls-remote http://127.0.0.1:8418/open.git").exit_code == 0)

    def clone(self, word="w", url="http://127.0.0.1:8418/open.git", **more):
        path = f"{self.dir}/{word}"
        self.box.git.clone(url=url, path=path, **more)
        return path

    def commit(self, path, file, text, message="m"):
        self.box.fs.upload_file(text.encode(), f"{path}/{file}")
        self.box.git.add(path, [file])
        return self.box.git.commit(path, message, "Ada", "ada@example.com")

    def log(self, path):
        return self.sh(f"git -C {path} log --format=%s").split()

    def test_a_clone_has_the_files_and_knows_its_branch(self):
        path = self.clone()
        self.assertEqual(self.box.fs.download_file(f"{path}/a.txt"), b"two\n")
        status = self.box.git.status(path)
        self.assertEqual((status.current_branch, status.file_status, status.ahead, status.behind), ("main", [], 0, 0))
        self.assertTrue(status.branch_published)

    def test_a_branch_a_commit_and_a_depth(self):
        self.assertEqual(self.box.fs.download_file(self.clone("b", branch="topic") + "/a.txt"), b"one\n")
        first = self.sh("git -C /tmp/seed rev-parse topic").strip()
        path = self.clone("c", commit_id=first)
        self.assertEqual(self.sh(f"git -C {path} rev-parse HEAD").strip(), first)
        self.assertEqual(self.log(self.clone("d", depth=1)), ["second"])

    def test_what_changed_is_told_by_its_kind(self):
        path = self.clone()
        self.sh(f"cd {path} && echo x > new && echo y > staged && git add staged && echo z >> a.txt")
        found = {f.name: (f.staging, f.worktree) for f in self.box.git.status(path).file_status}
        self.assertEqual(found["new"], ("Untracked", "Untracked"))
        self.assertEqual(found["staged"][0], "Added")
        self.assertEqual(found["a.txt"][1], "Modified")
        self.sh(f"cd {path} && rm a.txt")
        found = {f.name: f.worktree for f in self.box.git.status(path).file_status}
        self.assertEqual(found["a.txt"], "Deleted")

    def test_odd_names_are_names(self):
        path = self.clone()
        odd = 'ü "q" b.txt'
        self.commit(path, odd, "x")
        self.assertEqual(self.box.git.status(path).file_status, [])
        self.assertIn(odd, self.sh(f"git -C {path} -c core.quotePath=false ls-files -z").split("\0"))

    def test_a_commit_has_its_author_and_answers_its_name(self):
        path = self.clone()
        done = self.commit(path, "n.txt", "n", "a ‘message’\nof two lines")
        self.assertEqual(self.sh(f"git -C {path} log -1 --format='%H %an %ae'").split(), [done.sha, "Ada", "ada@example.com"])
        self.assertEqual(self.box.git.status(path).ahead, 1)

    def test_an_empty_commit_only_when_it_is_meant(self):
        path = self.clone()
        with self.assertRaises(DaytonaError):
            self.box.git.commit(path, "nothing", "A", "a@x")
        self.box.git.commit(path, "nothing", "A", "a@x", allow_empty=True)
        self.assertEqual(self.log(path)[0], "nothing")

    def test_a_push_arrives_and_a_pull_brings_it(self):
        one, two = self.clone("one"), self.clone("two")
        self.commit(one, self.dir[5:], "pushed", "over")
        self.box.git.push(one)
        self.box.git.pull(two)
        self.assertEqual(self.log(two)[0], "over")

    def test_a_push_that_is_behind_is_rejected(self):
        one, two = self.clone("one"), self.clone("two")
        self.commit(one, self.dir[5:] + "1", "1")
        self.box.git.push(one)
        self.commit(two, self.dir[5:] + "2", "2")
        with self.assertRaises(DaytonaGitPushRejectedError):
            self.box.git.push(two)

    def test_a_new_branch_is_pushed_with_its_upstream(self):
        path = self.clone()
        branch = self.dir[5:]
        self.box.git.create_branch(path, branch)
        self.box.git.checkout_branch(path, branch)
        self.commit(path, "b.txt", "b")
        self.assertFalse(self.box.git.status(path).branch_published)
        self.box.git.push(path, branch=branch, remote="origin", set_upstream=True)
        status = self.box.git.status(path)
        self.assertEqual((status.upstream, status.branch_published), (f"origin/{branch}", True))

    def test_a_password_opens_and_is_kept_nowhere(self):
        url = "http://127.0.0.1:8418/private/own.git"
        for wrong in ({}, {"username": "ada", "password": "no"}):
            with self.assertRaises(DaytonaGitAuthFailedError):
                self.clone("wrong", url, **wrong)
        path = self.clone("right", url, username="ada", password=SECRET)
        self.commit(path, self.dir[5:], "x")
        with self.assertRaises(DaytonaGitAuthFailedError):
            self.box.git.push(path)
        self.box.git.push(path, username="ada", password=SECRET)
        self.box.git.pull(path, username="ada", password=SECRET)
        kept = self.box.process.exec(f"grep -rF -e 'pa ss' -e 'pa%20ss' {path}/.git ~/.git-credentials ~/.gitconfig")
        self.assertNotIn("pa", kept.result.replace("grep:", ""), "the password is in a file")

    def test_a_login_for_all_later_calls(self):
        self.box.git.dangerously_authenticate("ada", SECRET, host="127.0.0.1:8418", protocol="http")
        path = self.clone("kept", "http://127.0.0.1:8418/private/own.git")
        self.assertEqual(self.box.fs.get_file_info(f"{path}/a.txt").size, 4)
        self.sh("rm -f ~/.git-credentials; git config --global --unset-all credential.helper || true")

    def test_what_is_not_there(self):
        with self.assertRaises(DaytonaGitRepoNotFoundError):
            self.clone("none", "http://127.0.0.1:8418/none.git")
        with self.assertRaises(DaytonaGitTransportFailedError):
            self.clone("dead", "http://127.0.0.1:9/none.git")
        with self.assertRaises(DaytonaError):
            self.box.git.status(self.dir)
        with self.assertRaises(DaytonaGitBranchNotFoundError):
            self.clone("branch", branch="no-such-branch")

    def test_branches_come_and_go(self):
        path = self.clone()
        self.box.git.create_branch(path, "feature/x")
        self.assertIn("feature/x", self.box.git.branches(path).branches)
        with self.assertRaises(DaytonaGitBranchExistsError):
            self.box.git.create_branch(path, "feature/x")
        self.box.git.checkout_branch(path, "main")
        self.assertEqual(self.box.git.status(path).current_branch, "main")
        self.box.git.delete_branch(path, "feature/x")
        self.assertNotIn("feature/x", self.box.git.branches(path).branches)
        with self.assertRaises(DaytonaGitBranchNotFoundError):
            self.box.git.checkout_branch(path, "feature/x")

    def test_a_dirty_tree_is_not_left_behind(self):
        path = self.clone()
        self.sh(f"cd {path} && git checkout -q topic && git checkout -q main && echo dirty > a.txt")
        with self.assertRaises(DaytonaGitDirtyWorktreeError):
            self.box.git.checkout_branch(path, "topic")
        self.assertEqual(self.box.fs.download_file(f"{path}/a.txt"), b"dirty\n")

    def test_a_pull_that_does_not_fit_is_a_conflict(self):
        one, two = self.clone("one"), self.clone("two")
        self.sh(f"git -C {two} config pull.rebase false; git -C {two} config user.name t; git -C {two} config user.email t@x")
        self.commit(one, "conflict.txt", f"one {self.dir}")
        self.box.git.push(one)
        self.commit(two, "conflict.txt", "two")
        with self.assertRaises((DaytonaGitMergeConflictError, DaytonaConflictError)):
            self.box.git.pull(two)

    def test_a_repository_is_made_here(self):
        path = f"{self.dir}/fresh"
        self.box.git.init(path, initial_branch="trunk")
        self.commit(path, "f", "f", "begun")
        self.assertEqual(self.box.git.branches(path).branches, ["trunk"])
        self.box.git.init(f"{self.dir}/bare.git", bare=True)
        self.assertEqual(self.sh(f"git -C {self.dir}/bare.git rev-parse --is-bare-repository").strip(), "true")

    def test_remotes_are_added_found_and_replaced(self):
        path = f"{self.dir}/r"
        self.box.git.init(path)
        self.box.git.remote_add(path, "up", "http://127.0.0.1:8418/open.git", fetch=True)
        self.assertEqual(self.box.git.remote_get(path, "up"), "http://127.0.0.1:8418/open.git")
        self.assertEqual(self.sh(f"git -C {path} branch -r --list up/main").strip(), "up/main")
        with self.assertRaises(DaytonaError):
            self.box.git.remote_add(path, "up", "http://elsewhere/")
        self.box.git.remote_add(path, "up", "http://elsewhere/", overwrite=True)
        self.assertEqual([(r.name, r.url) for r in self.box.git.remotes(path).remotes], [("up", "http://elsewhere/")])
        self.assertIsNone(self.box.git.remote_get(path, "none"))

    def test_reset_and_restore(self):
        path = self.clone()
        self.sh(f"cd {path} && echo x > a.txt && git add a.txt")
        self.box.git.reset(path, files=["a.txt"])
        self.assertEqual(self.box.git.status(path).file_status[0].staging, "Unmodified")
        self.box.git.restore(path, ["a.txt"])
        self.assertEqual(self.box.fs.download_file(f"{path}/a.txt"), b"two\n")
        self.box.git.reset(path, mode="hard", target="origin/topic")
        self.assertEqual(self.box.fs.download_file(f"{path}/a.txt"), b"one\n")

    def test_settings_by_scope(self):
        path = self.clone()
        self.box.git.configure_user("Grace", "grace@example.com", scope="local", path=path)
        self.assertEqual(self.sh(f"git -C {path} config user.name").strip(), "Grace")
        self.box.git.set_config("alias.st", "status -sb")
        self.assertEqual(self.box.git.get_config("alias.st"), "status -sb")
        self.assertIsNone(self.box.git.get_config("alias.none"))

    def test_words_that_look_like_options_are_none(self):
        path = self.clone()
        for ask in (
            lambda: self.box.git.create_branch(path, "--force"),
            lambda: self.box.git.checkout_branch(path, "-q"),
            lambda: self.box.git.clone(url="--upload-pack=touch /tmp/owned", path=f"{self.dir}/x"),
            lambda: self.box.git.clone(url="ext::sh -c touch% /tmp/owned", path=f"{self.dir}/y"),
        ):
            with self.assertRaises(DaytonaError):
                ask()
        self.assertEqual(self.box.process.exec("test -e /tmp/owned").exit_code, 1)

    def test_a_folder_that_is_full_is_not_cloned_over(self):
        self.box.fs.upload_file(b"precious", f"{self.dir}/w/keep")
        with self.assertRaises(DaytonaError):
            self.clone("w")
        self.assertEqual(self.box.fs.download_file(f"{self.dir}/w/keep"), b"precious")
        with self.assertRaises(DaytonaNotFoundError):
            self.box.git.branches(f"{self.dir}/none")
