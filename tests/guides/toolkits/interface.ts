// One interface for every back end: the same work runs with E2B's and with Daytona's sandboxes.
import assert from 'node:assert/strict';
import { type CloudSandbox, DaytonaSandboxToolkit, E2BSandboxToolkit } from 'atoll-sandbox';

async function work(sandbox: CloudSandbox): Promise<string> {
  await sandbox.writeFile('/tmp/numbers.txt', '1\n2\n3\n');
  const sum = await sandbox.run('print(sum(int(line) for line in open("/tmp/numbers.txt")))');
  const lines = await sandbox.shell('wc -l < /tmp/numbers.txt');
  assert.equal(await sandbox.readFile('/tmp/missing.txt'), null);
  return `${sum.output.trim()} of ${lines.output.trim()} lines`;
}

const e2b = new E2BSandboxToolkit({ baseURL: `${process.env['ATOLL_URL']}/e2b` });
const daytona = new DaytonaSandboxToolkit({ baseURL: `${process.env['ATOLL_URL']}/daytona/api` });
for (const toolkit of [e2b, daytona]) {
  try {
    assert.equal(await work(toolkit.getSandbox()), '6 of 3 lines');
  } finally {
    await toolkit.close();
  }
}
