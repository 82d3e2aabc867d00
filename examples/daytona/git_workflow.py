"""A repository: made, committed to, branched, cloned. No server outside is needed: the sandbox has one of its own."""

from daytona import Daytona

daytona = Daytona()
sandbox = daytona.create()
try:
    git, fs = sandbox.git, sandbox.fs
    git.init("/tmp/project", initial_branch="main")
    fs.upload_file(b"# A project\n", "/tmp/project/README.md")
    git.add("/tmp/project", ["README.md"])
    print("first commit", git.commit("/tmp/project", "begin", "Ada", "ada@example.com").sha)

    git.create_branch("/tmp/project", "feature")
    git.checkout_branch("/tmp/project", "feature")
    fs.replace_in_files(["/tmp/project/README.md"], "A project", "Our project")
    print("changed:", [file.name for file in git.status("/tmp/project").file_status])
    git.add("/tmp/project", ["."])
    print("second commit", git.commit("/tmp/project", "say whose", "Ada", "ada@example.com").sha)

    git.clone("file:///tmp/project", "/tmp/copy", branch="feature")
    print(fs.download_file("/tmp/copy/README.md").decode(), end="")
finally:
    sandbox.delete()
