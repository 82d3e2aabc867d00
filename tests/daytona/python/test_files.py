"""Files: written, read, listed, searched, changed; large, empty, odd ones; links that need no key."""

import hashlib
import io
import os
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

from daytona import (
    CreateSandboxFromImageParams,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaFileNotFoundError,
    DaytonaNotFoundError,
    FileDownloadRequest,
    FileUpload,
    Resources,
)

from world import Shared, client, until

ODD = "ünï cöde & 'quotes' \"d\" #?%41 漢字.txt"


class Files(Shared):
    def at(self, word):
        return f"{self.dir}/{word}"

    def test_bytes_go_in_and_out_as_they_are(self):
        data = bytes(range(256)) * 40
        self.box.fs.upload_file(data, self.at("a.bin"))
        self.assertEqual(self.box.fs.download_file(self.at("a.bin")), data)
        self.assertEqual(self.sh(f"sha256sum < {self.at('a.bin')}").split()[0], hashlib.sha256(data).hexdigest())

    def test_a_file_belongs_to_the_sandboxes_user(self):
        self.box.fs.upload_file(b"x", self.at("mine"))
        info = self.box.fs.get_file_info(self.at("mine"))
        self.assertEqual((info.owner, info.is_dir, info.size, info.name), (self.box.user, False, 1, "mine"))
        self.assertEqual(self.sh(f"stat -c %U {self.at('mine')}").strip(), self.box.user)

    def test_an_empty_file_is_a_file(self):
        self.box.fs.upload_file(b"", self.at("empty"))
        self.assertEqual(self.box.fs.get_file_info(self.at("empty")).size, 0)
        got = self.box.fs.download_files([FileDownloadRequest(source=self.at("empty"))])
        self.assertEqual((got[0].result, got[0].error), (b"", None))

    def test_folders_above_are_made(self):
        self.box.fs.upload_file(b"deep", self.at("a/b/c/d.txt"))
        self.assertEqual(self.sh(f"cat {self.at('a/b/c/d.txt')}"), "deep")

    def test_an_upload_replaces_what_was_there(self):
        self.box.fs.upload_file(b"long long long", self.at("f"))
        self.box.fs.upload_file(b"short", self.at("f"))
        self.assertEqual(self.box.fs.download_file(self.at("f")), b"short")

    def test_a_relative_path_is_below_the_working_directory(self):
        self.box.fs.upload_file(b"rel", "relative-one.txt")
        self.assertEqual(self.sh(f"cat {self.box.get_work_dir()}/relative-one.txt"), "rel")
        self.assertEqual(self.box.get_user_root_dir(), self.box.get_user_home_dir())

    def test_odd_names_are_names(self):
        self.box.fs.upload_file(b"odd", self.at(ODD))
        self.assertEqual(self.box.fs.download_file(self.at(ODD)), b"odd")
        self.assertEqual([f.name for f in self.box.fs.list_files(self.dir)], [ODD])
        self.assertEqual(self.sh(f"ls {self.dir} | wc -l").strip(), "1")
        self.box.fs.delete_file(self.at(ODD))
        self.assertEqual(self.box.fs.list_files(self.dir), [])

    def test_a_file_of_this_machine_is_streamed_up_and_down(self):
        with tempfile.TemporaryDirectory() as here:
            up, down = os.path.join(here, "up"), os.path.join(here, "down")
            data = os.urandom(1 << 20)
            with open(up, "wb") as file:
                file.write(data)
            self.box.fs.upload_file(up, self.at("local"))
            self.box.fs.download_file(self.at("local"), down)
            with open(down, "rb") as file:
                self.assertEqual(file.read(), data)

    def test_a_hundred_megabytes(self):
        piece = os.urandom(1 << 20)
        data = piece * 100
        self.box.fs.upload_file(data, self.at("large"))
        self.assertEqual(self.sh(f"stat -c %s {self.at('large')}").strip(), str(len(data)))
        got = hashlib.sha256()
        for chunk in self.box.fs.download_file_stream(self.at("large")):
            got.update(chunk)
        self.assertEqual(got.hexdigest(), hashlib.sha256(data).hexdigest())
        self.box.fs.delete_file(self.at("large"))

    def test_many_files_in_one_call(self):
        files = [FileUpload(source=f"content {n}".encode(), destination=self.at(f"many/{n}.txt")) for n in range(200)]
        self.box.fs.upload_files(files)
        self.assertEqual(self.sh(f"ls {self.at('many')} | wc -l").strip(), "200")
        wanted = [FileDownloadRequest(source=f.destination) for f in files] + [FileDownloadRequest(source=self.at("none"))]
        got = self.box.fs.download_files(wanted)
        self.assertEqual([g.result for g in got[:-1]], [f.source for f in files])
        self.assertEqual(got[-1].source, self.at("none"))
        self.assertIsNone(got[-1].result)
        self.assertEqual(got[-1].error_details.code, "FILE_NOT_FOUND")

    def test_a_thousand_files_are_listed(self):
        self.sh(f"cd {self.dir} && seq 1 1000 | xargs touch")
        names = [f.name for f in self.box.fs.list_files(self.dir)]
        self.assertEqual(sorted(map(int, names)), list(range(1, 1001)))

    def test_a_stream_tells_its_progress_and_can_be_cancelled(self):
        told = []
        self.box.fs.upload_file_stream(io.BytesIO(b"z" * 3_000_000), self.at("stream"), on_progress=lambda p: told.append(p.bytes_sent))
        self.assertEqual((told[-1], told), (3_000_000, sorted(told)))
        seen = []
        got = b"".join(self.box.fs.download_file_stream(self.at("stream"), on_progress=seen.append))
        self.assertEqual((len(got), seen[-1].bytes_received, seen[-1].total_bytes), (3_000_000, 3_000_000, 3_000_000))
        cancel = threading.Event()
        cancel.set()
        with self.assertRaises(DaytonaError):
            list(self.box.fs.download_file_stream(self.at("stream"), cancel_event=cancel))

    def test_a_missing_file_is_an_error_of_its_own(self):
        with self.assertRaises(DaytonaFileNotFoundError):
            self.box.fs.download_file(self.at("none"))
        with self.assertRaises(DaytonaFileNotFoundError):
            list(self.box.fs.download_file_stream(self.at("none")))
        for ask in (self.box.fs.get_file_info, self.box.fs.list_files, self.box.fs.delete_file):
            with self.assertRaises(DaytonaNotFoundError):
                ask(self.at("none"))

    def test_what_the_user_may_not_write_is_refused(self):
        with self.assertRaises(DaytonaError):
            self.box.fs.upload_file(b"x", "/usr/bin/not-mine")
        self.assertEqual(self.box.process.exec("test -e /usr/bin/not-mine").exit_code, 1)

    def test_what_the_user_may_not_read_is_refused(self):
        with self.assertRaises(DaytonaError):
            self.box.fs.download_file("/etc/shadow")

    def test_a_listing_goes_as_deep_as_it_is_told(self):
        self.sh(f"mkdir -p {self.at('one/two/three')} && touch {self.at('one/f')} {self.at('one/two/g')}")
        shallow = {f.name for f in self.box.fs.list_files(self.dir)}
        self.assertEqual(shallow, {"one"})
        deep = {f.path or f.name for f in self.box.fs.list_files(self.dir, depth=3)}
        self.assertTrue(any(p.endswith("one/two/g") for p in deep), deep)
        self.assertTrue(any(p.endswith("one/two/three") for p in deep), deep)

    def test_a_listing_tells_what_each_is(self):
        self.sh(f"cd {self.dir} && mkdir d && printf 12345 > f && chmod 640 f")
        found = {f.name: f for f in self.box.fs.list_files(self.dir)}
        self.assertTrue(found["d"].is_dir)
        self.assertEqual((found["f"].is_dir, found["f"].size, found["f"].permissions), (False, 5, "0640"))

    def test_a_folder_with_its_mode(self):
        self.box.fs.create_folder(self.at("made/deep"), "700")
        self.assertEqual(self.sh(f"stat -c '%a %F' {self.at('made/deep')}").strip(), "700 directory")

    def test_a_file_is_moved_and_never_over_another(self):
        self.box.fs.upload_file(b"1", self.at("a"))
        self.box.fs.upload_file(b"2", self.at("b"))
        with self.assertRaises(DaytonaConflictError):
            self.box.fs.move_files(self.at("a"), self.at("b"))
        self.box.fs.move_files(self.at("a"), self.at("c"))
        self.assertEqual(sorted(f.name for f in self.box.fs.list_files(self.dir)), ["b", "c"])
        with self.assertRaises(DaytonaNotFoundError):
            self.box.fs.move_files(self.at("a"), self.at("d"))

    def test_mode_and_owner_are_set(self):
        self.box.fs.upload_file(b"#!/bin/sh\necho ran\n", self.at("run"))
        self.box.fs.set_file_permissions(self.at("run"), mode="755")
        self.assertEqual(self.sh(self.at("run")), "ran\n")
        self.box.fs.set_file_permissions(self.at("run"), mode="600", owner=self.box.user, group=self.box.user)
        self.assertEqual(self.sh(f"stat -c '%a %U %G' {self.at('run')}").strip(), f"600 {self.box.user} {self.box.user}")
        with self.assertRaises(DaytonaError):
            self.box.fs.set_file_permissions(self.at("run"), mode="not octal")

    def test_a_folder_goes_only_when_that_is_meant(self):
        self.box.fs.upload_file(b"x", self.at("full/x"))
        with self.assertRaises(DaytonaBadRequestError):
            self.box.fs.delete_file(self.at("full"))
        self.box.fs.delete_file(self.at("full"), recursive=True)
        self.assertEqual(self.box.fs.list_files(self.dir), [])

    def test_text_is_found_in_files(self):
        self.sh(f"cd {self.dir} && mkdir s && printf 'one\\nTODO: two\\n' > s/a.py && printf 'TODO.x\\n' > b.txt && printf '\\0TODO' > c.bin")
        found = sorted((m.file, m.line, m.content.strip()) for m in self.box.fs.find_files(self.dir, "TODO"))
        self.assertEqual(found, [(self.at("b.txt"), 1, "TODO.x"), (self.at("s/a.py"), 2, "TODO: two")])
        self.assertEqual(self.box.fs.find_files(self.dir, "TODO: ."), [], "a pattern is plain text")

    def test_files_are_found_by_name(self):
        self.sh(f"cd {self.dir} && mkdir -p x/y && touch a.py x/b.py x/y/c.py x/d.txt")
        found = sorted(self.box.fs.search_files(self.dir, "*.py").files)
        self.assertEqual([os.path.basename(f) for f in found], ["a.py", "b.py", "c.py"])

    def test_text_is_replaced_and_each_file_answers_for_itself(self):
        self.box.fs.upload_file(b"a.b a.b axb", self.at("r"))
        done = self.box.fs.replace_in_files([self.at("r"), self.at("none")], "a.b", "$1")
        self.assertEqual([(r.success, bool(r.error)) for r in done], [(True, False), (False, True)])
        self.assertEqual(self.box.fs.download_file(self.at("r")), b"$1 $1 axb")

    def test_a_link_downloads_without_a_key_until_it_is_revoked(self):
        self.box.fs.upload_file(b"shared content", self.at("s p.txt"))
        link = self.box.download_url(self.at("s p.txt"))
        self.assertEqual(urllib.request.urlopen(link, timeout=60).read(), b"shared content")
        other = link.replace(urllib.parse.quote("s p.txt"), "other").replace("s+p.txt", "other")
        self.assertNotEqual(other, link)
        self.assert_refused(other)
        self.box.rotate_signing_key()
        self.assert_refused(link)

    def test_a_link_uploads_one_file(self):
        link = self.box.upload_url(self.at("up.txt"), ttl_seconds=60)
        body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nfrom outside\r\n--B--\r\n'
        ask = urllib.request.Request(link, body, {"Content-Type": "multipart/form-data; boundary=B"})
        self.assertEqual(urllib.request.urlopen(ask, timeout=60).status, 200)
        self.assertEqual(self.sh(f"cat {self.at('up.txt')}"), "from outside")
        self.assert_refused(link)  # an upload link reads nothing

    def test_a_link_ends(self):
        self.box.fs.upload_file(b"x", self.at("f"))
        link = self.box.download_url(self.at("f"), ttl_seconds=5)
        self.assertEqual(urllib.request.urlopen(link, timeout=60).read(), b"x")
        until("it ended", lambda: self.refused(link))

    @staticmethod
    def refused(link):
        try:
            urllib.request.urlopen(link, timeout=60).read()
        except urllib.error.HTTPError as error:
            return error.code in (401, 403, 405)
        return False

    def assert_refused(self, link):
        self.assertTrue(self.refused(link), link)

    def test_two_clients_see_the_same_files(self):
        self.box.fs.upload_file(b"one", self.at("shared"))
        self.assertEqual(client().get(self.box.id).fs.download_file(self.at("shared")), b"one")

    def test_a_full_disk_is_said_and_the_sandbox_lives(self):
        params = CreateSandboxFromImageParams(image="debian", resources=Resources(cpu=1, memory=1, disk=1))
        box = client().create(params)
        self.addCleanup(self._remove, box.id)
        box.process.exec("dd if=/dev/zero of=/tmp/hog bs=16M 2>/dev/null")
        with self.assertRaises(DaytonaError):
            box.fs.upload_file(b"y" * 20_000_000, "/tmp/more")
        self.assertEqual(self.sh("rm -f /tmp/hog* /tmp/more; echo lives", box=box), "lives\n")
