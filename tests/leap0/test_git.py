"""Git: a repository from its first commit to a push and back."""

from world import Shared


class Git(Shared):
    def test_a_repository_from_first_commit_to_push_and_pull(self):
        git, fs, run = self.box.git, self.box.filesystem, self.box.process.execute
        made = run(command="git init -q --bare -b main /tmp/origin.git && git init -q -b main /tmp/seed && cd /tmp/seed && "
                           "git -c user.name=s -c user.email=s@x commit -q --allow-empty -m first && git push -q /tmp/origin.git main")
        self.assertEqual(made.exit_code, 0, made.stderr)
        path = "/tmp/work"
        self.assertEqual(git.clone(url="file:///tmp/origin.git", path=path, branch="main").exit_code, 0)
        fs.write_file(path=f"{path}/a.txt", content="one\n")
        status = git.status(path=path).output.splitlines()
        self.assertIn("# branch.head main", status)
        self.assertIn("? a.txt", status)
        self.assertEqual(git.add(path=path, files=["a.txt"]).exit_code, 0)
        self.assertIn("+one", git.diff_staged(path=path).output)
        done = git.commit(path=path, message="add a", author="Ada", email="ada@example.com")
        self.assertEqual((len(done.sha), done.result.exit_code), (40, 0))
        self.assertIn("add a", git.log(path=path, max_count=1).output)
        self.assertNotIn("first", git.log(path=path, max_count=1).output)
        self.assertIn("Ada", git.show(path=path).output)
        fs.write_file(path=f"{path}/a.txt", content="two\n")
        self.assertIn("+two", git.diff_unstaged(path=path, context_lines=0).output)
        self.assertIn("a.txt", git.diff(path=path, target="HEAD~1").output)
        self.assertEqual(git.add(path=path, files=["."]).exit_code, 0)
        self.assertEqual(git.reset(path=path).exit_code, 0)
        self.assertEqual(git.diff_staged(path=path).output.strip(), "")
        self.assertEqual(git.create_branch(path=path, name="topic", checkout=True).exit_code, 0)
        self.assertIn("topic", git.branches(path=path).output)
        self.assertEqual(git.checkout_branch(path=path, branch="main").exit_code, 0)
        self.assertEqual(git.delete_branch(path=path, name="topic", force=True).exit_code, 0)
        self.assertEqual(git.push(path=path, remote="origin", branch="main").exit_code, 0)
        self.assertEqual(git.clone(url="file:///tmp/origin.git", path="/tmp/other", depth=1).exit_code, 0)
        self.assertEqual(fs.read_file(path="/tmp/other/a.txt"), "one\n")
        self.assertEqual(git.pull(path="/tmp/other", remote="origin", branch="main").exit_code, 0)

    def test_what_git_refuses_is_its_exit_code_and_not_an_error(self):
        said = self.box.git.status(path="/tmp")
        self.assertNotEqual(said.exit_code, 0)
        self.assertIn("not a git repository", said.output)
