"""Lists: pages, filters, order; and what one tenant sees of another's, which is nothing."""

import os
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

from daytona import (
    CreateSandboxFromSnapshotParams,
    DaytonaAuthenticationError,
    DaytonaConfig,
    DaytonaError,
    Daytona,
    DaytonaNotFoundError,
    ListSandboxesQuery,
    SandboxListSortDirection,
    SandboxListSortField,
    SandboxState,
)

from world import Case, client, name, stranger


class Lists(Case):
    @classmethod
    def setUpClass(cls):
        cls.mark = name("m")
        params = CreateSandboxFromSnapshotParams
        cls.boxes = [
            client().create(params(name=f"{cls.mark}-{n}", labels={"mark": cls.mark, "n": str(n)}, public=n == 4)) for n in range(5)
        ]
        cls.boxes[0].stop()

    @classmethod
    def tearDownClass(cls):
        for box in cls.boxes:
            box.delete()

    def ids(self, **query):
        labels = {"mark": self.mark, **query.pop("labels", {})}
        return [box.id for box in client().list(ListSandboxesQuery(labels=labels, **query))]

    def test_all_pages_come_and_none_twice(self):
        for limit in (1, 2, 5, 50):
            self.assertEqual(sorted(self.ids(limit=limit)), sorted(box.id for box in self.boxes), limit)

    def test_labels_must_all_fit(self):
        self.assertEqual(self.ids(labels={"n": "3"}), [self.boxes[3].id])
        self.assertEqual(self.ids(labels={"n": "none"}), [])

    def test_by_state(self):
        self.assertEqual(self.ids(states=[SandboxState.STOPPED]), [self.boxes[0].id])
        self.assertEqual(len(self.ids(states=[SandboxState.STARTED])), 4)
        self.assertEqual(len(self.ids(states=[SandboxState.STARTED, SandboxState.STOPPED])), 5)

    def test_by_the_beginning_of_a_name_or_id(self):
        self.assertEqual(self.ids(name=f"{self.mark}-2".upper()), [self.boxes[2].id])
        self.assertEqual(self.ids(id=self.boxes[1].id[:12]), [self.boxes[1].id])

    def test_public_ones(self):
        self.assertEqual(self.ids(is_public=True), [self.boxes[4].id])

    def test_in_the_order_that_is_asked_for(self):
        asc = self.ids(sort=SandboxListSortField.NAME, order=SandboxListSortDirection.ASC)
        self.assertEqual(asc, [box.id for box in self.boxes])
        desc = self.ids(sort=SandboxListSortField.CREATEDAT, order=SandboxListSortDirection.DESC, limit=2)
        self.assertEqual(desc, [box.id for box in reversed(self.boxes)])

    def test_by_the_time_of_creation(self):
        now = datetime.now(timezone.utc)
        self.assertEqual(self.ids(created_at_after=now + timedelta(hours=1)), [])
        self.assertEqual(len(self.ids(created_at_before=now + timedelta(hours=1))), 5)

    def test_by_resources(self):
        self.assertEqual(len(self.ids(min_cpu=1, max_cpu=64)), 5)
        self.assertEqual(self.ids(min_memory_gib=512), [])

    def test_what_is_listed_can_be_used(self):
        found = [box for box in client().list(ListSandboxesQuery(labels={"mark": self.mark, "n": "2"}))]
        self.assertEqual(self.sh("echo used", box=found[0]), "used\n")

    def test_another_tenant_sees_and_reaches_nothing(self):
        other = stranger()
        self.assertEqual([b.id for b in other.list() if b.id in {x.id for x in self.boxes}], [])
        for ident in (self.boxes[1].id, self.boxes[1].name):
            with self.assertRaises(DaytonaNotFoundError):
                other.get(ident)
        # Whoever knows the address of its toolbox gets no further with another key.
        box = client().get(self.boxes[1].id)
        for path, body in (("/process/execute", b'{"command":"id"}'), ("/files?path=/etc/passwd", None), ("/work-dir", None)):
            ask = urllib.request.Request(f"{box.toolbox_proxy_url}/{box.id}{path}", body,
                                         {"Authorization": f"Bearer {os.environ['DAYTONA_OTHER_KEY']}", "Content-Type": "application/json"})
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(ask, timeout=60)
            self.assertIn(refused.exception.code, (401, 403, 404))

    def test_a_key_that_is_none_is_refused(self):
        nobody = Daytona(DaytonaConfig(api_key="dtn_" + "0" * 40))
        with self.assertRaises(DaytonaAuthenticationError):
            nobody.get(self.boxes[1].id)
        with self.assertRaises(DaytonaError):
            list(nobody.list())
