"""Drives a service with AgentBay's API by the vendor's own SDK: what the SDK cannot read is wrong in the service."""

import ssl
import urllib.request

from agentbay import AgentBay, CreateSessionParams

LABELS = {"owner": "sdk", "purpose": "truth"}


def check(result, what: str):
    assert result.success, f"{what}: {result.error_message}"
    return result


def commands(session, is_wrapped: bool) -> None:
    ran = check(session.command.execute_command("echo out; pwd", cwd="/tmp", envs={"A": "b"}), "command")
    assert ran.stdout == "out\n/tmp\n", ran.stdout
    assert session.command.execute_command("echo $A", envs={"A": "b c"}).stdout == "b c\n"
    failed = session.command.execute_command("echo no >&2; exit 3")
    if is_wrapped:
        assert (failed.exit_code, failed.stderr) == (3, "no\n"), failed
    else:
        assert (failed.exit_code, failed.stdout) == (0, ""), failed


def files(session) -> None:
    fs = session.file_system
    check(fs.create_directory("/tmp/made"), "create_directory")
    text = "a line with ümlauts\n" * 6000
    check(fs.write_file("/tmp/made/a", text), "write_file")
    assert check(fs.read_file("/tmp/made/a"), "read_file").content == text
    check(fs.write_file("/tmp/made/b", "one"), "write_file")
    check(fs.write_file("/tmp/made/b", " two", mode="append"), "append")
    assert check(fs.read_file("/tmp/made/b", format="bytes"), "read bytes").content == b"one two"
    info = check(fs.get_file_info("/tmp/made/b"), "get_file_info").file_info
    assert (info["size"], info["isDirectory"]) == (7, False), info
    check(fs.move_file("/tmp/made/b", "/tmp/made/c"), "move_file")
    listed = check(fs.list_directory("/tmp/made"), "list_directory").entries
    names = {(entry["name"] if isinstance(entry, dict) else entry.name) for entry in listed}
    assert names == {"a", "c"}, names
    check(fs.delete_file("/tmp/made/c"), "delete_file")
    assert not fs.read_file("/tmp/made/c").success


def lists(bay, session) -> None:
    found = check(bay.list(labels=LABELS), "list")
    assert [item["sessionId"] for item in found.session_ids] == [session.session_id], found.session_ids
    assert found.session_ids[0]["sessionStatus"] == "RUNNING" and found.total_count == 1
    assert check(bay.list(labels={"owner": "nobody"}), "list").session_ids == []
    assert check(bay.list(labels=LABELS, status="PAUSED"), "list").session_ids == []
    assert session.get_labels().data == LABELS
    assert check(bay.get(session.session_id), "get").session.session_id == session.session_id
    assert not bay.get("session-none").success


def drive(bay, image: str) -> None:
    params = CreateSessionParams(labels=LABELS, image_id=image)
    session = check(bay.create(params), "create").session
    commands(session, is_wrapped=image == "code_latest")
    files(session)
    lists(bay, session)
    check(session.keep_alive(), "keep_alive")
    metrics = check(session.get_metrics(), "get_metrics").metrics
    assert metrics.cpu_count >= 1 and metrics.mem_used > 0, metrics
    session.command.execute_command("mkdir -p /www; echo page >/www/index.html; httpd -p 127.0.0.1:30100 -h /www")
    url = check(session.get_link(protocol_type="https", port=30100), "get_link").data
    with urllib.request.urlopen(url, context=ssl.create_default_context()) as answer:
        assert answer.read() == b"page\n"
    paused = check(session.beta_pause(poll_interval=0.05), "pause")
    assert paused.status == "PAUSED" and bay.list(labels=LABELS, status="PAUSED").total_count == 1
    assert not session.command.execute_command("true").success
    check(session.beta_resume(poll_interval=0.05), "resume")
    assert session.command.execute_command("cat /www/index.html").stdout == "page\n"
    check(session.delete(), "delete")
    assert check(bay.list(labels=LABELS), "list").session_ids == []


def main() -> None:
    bay = AgentBay()
    for image in ["linux_latest", "code_latest"]:
        drive(bay, image)
    assert not bay.create(CreateSessionParams(image_id="no-such-image")).success
    print("driven: 2 images")


main()
