"""Secrets in sandboxes: programs see a placeholder, and the hosts that the secret names get the value.

tests/tests/daytona.rs looks at what arrived: at paths of /daytona-filled the value, at paths of /daytona-kept the placeholder.
"""

from daytona import CreateSandboxFromSnapshotParams, CreateSecretParams, DaytonaError, UpdateSecretParams

from world import Case, client, name, refused, stranger, until

VALUE = "s3cr3t-canary"
HELLO = "hello from the internet"


class SecretsInSandboxes(Case):
    def secret(self, **more):
        asked = {"value": VALUE, "hosts": ["api.good.test"], **more}
        made = client().secret.create(CreateSecretParams(name=name("S").replace("-", "_"), **asked))
        self.addCleanup(until, "the secret is in use no more", lambda: self.drop(made.id))
        return made

    @staticmethod
    def drop(ident):
        """Whether it is gone; a sandbox that is being removed has it still."""
        try:
            client().secret.delete(ident)
        except Exception as error:  # noqa: BLE001 - see world.refused
            if getattr(error, "status", None) != 409:
                raise
            return False
        return True

    def get(self, box, url, header='Authorization: Bearer $API_KEY'):
        # Certificates of hosts that are not intercepted are of an authority that the sandbox does not know.
        self.assertEqual(self.sh(f'curl -skS -m 20 -H "{header}" {url}', box=box), HELLO, url)

    def test_a_sandbox_uses_a_secret_and_never_sees_it(self):
        made = self.secret()
        box = self.create(secrets={"API_KEY": made.name, "SAME": made.name}, env_vars={"OTHER": "1"})
        self.assertEqual(self.sh("printenv API_KEY SAME OTHER", box=box).split(), [made.placeholder, made.placeholder, "1"])
        self.assertGreater(len(made.placeholder), 40)
        self.get(box, "https://api.good.test/daytona-filled-bearer")
        self.get(box, "https://api.good.test/daytona-filled-key", "X-Api-Key: $API_KEY")
        self.sh('curl -sS -u "git:$API_KEY" https://api.good.test/daytona-filled-basic', box=box)
        code = "import os, urllib.request as u; r = u.Request('https://api.good.test/daytona-filled-python', headers={'X-Api-Key': os.environ['API_KEY']}); print(u.urlopen(r).read().decode())"
        self.assertEqual(box.process.code_run(code).result.strip(), HELLO)
        # Not to another host, not in the clear, not behind a redirect, not in the target.
        self.get(box, "https://good.test/daytona-kept-other")
        self.get(box, "http://api.good.test/daytona-kept-plain")
        self.get(box, "-L --location-trusted 'https://api.good.test/redirect?https://good.test/daytona-kept-landed'")
        self.get(box, '"https://api.good.test/daytona-kept-target?$API_KEY"', "X-Other: none")
        seen = self.sh(f"cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c {VALUE[:6]}-canary; "
                       f"grep -rl {VALUE[:6]}-canary /etc /run /tmp /home 2>/dev/null; true", box=box)
        self.assertEqual(seen.split(), ["0"], "the value is inside")

    def test_another_sandbox_cannot_use_the_placeholder(self):
        made, own = self.secret(), self.secret(value="of-another")
        plain, other = self.create(), self.create(secrets={"OWN": own.name})
        for at, box in enumerate((plain, other)):
            self.get(box, f"https://api.good.test/daytona-kept-stranger-{at}", f"X-Api-Key: {made.placeholder}")

    def test_secrets_are_attached_changed_and_detached_while_it_runs(self):
        made = self.secret()
        box = self.create()
        box.update_secrets({"API_KEY": made.name})
        self.get(box, "https://api.good.test/daytona-filled-attached")
        client().secret.update(made.id, UpdateSecretParams(value=f"{VALUE}-rotated"))
        self.get(box, "https://api.good.test/daytona-filled-rotated")
        client().secret.update(made.id, UpdateSecretParams(hosts=["good.test"]))
        self.get(box, "https://api.good.test/daytona-kept-moved")
        self.get(box, "https://good.test/daytona-filled-moved")
        with refused(409):
            client().secret.delete(made.id)
        box.stop()
        box.start()
        self.get(box, "https://good.test/daytona-filled-restarted")
        box.update_secrets({})
        self.assertNotEqual(box.process.exec("printenv API_KEY").exit_code, 0)
        self.get(box, "https://good.test/daytona-kept-detached", f"X-Api-Key: {made.placeholder}")

    def test_a_secret_opens_no_host(self):
        made = self.secret()
        box = self.create(secrets={"API_KEY": made.name}, domain_allow_list="good.test")
        self.get(box, "https://good.test/daytona-kept-narrow")
        self.assertNotEqual(box.process.exec("curl -skS -m 5 https://api.good.test/daytona-never").exit_code, 0)

    def test_what_cannot_be_attached_says_why(self):
        everywhere, nowhere = self.secret(hosts=["*"]), self.secret(hosts=None)
        for secrets in ({"A": everywhere.name}, {"A": nowhere.name}, {"A": "none"}, {"A=B": everywhere.name}):
            with refused(400):
                self.create(secrets=secrets)
        with refused(400):
            stranger().create(CreateSandboxFromSnapshotParams(secrets={"A": self.secret().name}), timeout=60)
        with self.assertRaises(DaytonaError) as said:
            self.create(linked_sandbox=self.create().id, ephemeral=True)
        self.assertIn("docs/fronts/daytona.md", str(said.exception))
