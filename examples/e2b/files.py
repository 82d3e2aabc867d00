"""Files in and out: write some, change them inside, watch a folder, read them back."""

import time

from e2b import FilesystemEventType, Sandbox

with_lines = [{"path": f"/home/user/notes/{n}.txt", "data": f"note {n}\n"} for n in range(3)]

sandbox = Sandbox.create(timeout=120)
try:
    sandbox.files.write_files(with_lines)
    watcher = sandbox.files.watch_dir("/home/user/notes")
    sandbox.commands.run("cat *.txt | tr a-z A-Z > all.txt", cwd="/home/user/notes")
    print(sandbox.files.read("/home/user/notes/all.txt"), end="")

    created = []
    deadline = time.monotonic() + 60
    while "all.txt" not in created and time.monotonic() < deadline:
        created += [event.name for event in watcher.get_new_events() if event.type == FilesystemEventType.CREATE]
        time.sleep(0.1)
    watcher.stop()
    print("created while we watched:", created)

    names = sorted(entry.name for entry in sandbox.files.list("/home/user/notes"))
    print("in the folder:", names)
    assert names == ["0.txt", "1.txt", "2.txt", "all.txt"] and "all.txt" in created
finally:
    sandbox.kill()
