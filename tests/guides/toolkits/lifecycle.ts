// The sandbox is created at the first call, lives until close() or its idle time, and belongs to one session.
import assert from 'node:assert/strict';
import { Atoll, DaytonaSandboxToolkit, E2BSandboxToolkit } from 'atoll-sandbox';

const url = process.env['ATOLL_URL'];
const server = new Atoll();

async function running(): Promise<string[]> {
  const ids = [];
  for await (const { id } of server.sandboxes.list()) ids.push(id);
  return ids;
}

const mine = new E2BSandboxToolkit({ baseURL: `${url}/e2b`, idleTimeoutSeconds: 300 });
const yours = new E2BSandboxToolkit({ baseURL: `${url}/e2b` });
mine.getTools();
assert.deepEqual(await running(), []);
await mine.getTools()[1]!.execute({ command: 'echo mine > /tmp/session' });
assert.equal((await running()).length, 1);
assert.equal(await yours.getSandbox().readFile('/tmp/session'), null);
assert.equal((await running()).length, 2);

const info = await (await server.sandboxes.get((await running()).at(-1)!)).refresh();
assert.ok(info.timeoutAt, 'it ends by itself when the program does not close it');
await mine.close();
await yours.close();
await assert.rejects(mine.getSandbox().shell('true'), /the sandbox is closed/);

const daytona = new DaytonaSandboxToolkit({ baseURL: `${url}/daytona/api`, idleTimeoutSeconds: 600 });
await daytona.getSandbox().start();
const theirs = await (await server.sandboxes.get((await running())[0]!)).refresh();
assert.deepEqual([theirs.autoStopS, theirs.autoDeleteS], [600, 0]);
await daytona.close();
assert.deepEqual(await running(), []);
