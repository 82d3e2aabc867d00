// Files are written before the first call of a tool; afterwards the vendor's own object is there too.
import assert from 'node:assert/strict';
import { Sandbox } from 'e2b';
import { DaytonaSandboxToolkit, E2BSandboxToolkit } from 'atoll-sandbox';

const url = process.env['ATOLL_URL'];

const toolkit = new E2BSandboxToolkit({ baseURL: `${url}/e2b` });
const sandbox = toolkit.getSandbox<Sandbox>();
assert.deepEqual([sandbox.vendor], [undefined]);
await sandbox.writeFile('/tmp/data.csv', 'a,b\n1,2\n');
const [run] = toolkit.getTools();
assert.equal(JSON.parse(await run!.execute({ code: 'print(open("/tmp/data.csv").read())' })).output, 'a,b\n1,2\n\n');
assert.equal(await sandbox.files!.read('/tmp/data.csv'), 'a,b\n1,2\n');
assert.match(sandbox.getHost!(3000), new RegExp(`^3000-${sandbox.sandboxId}\\.`));
assert.ok(sandbox.vendor instanceof Sandbox);
await toolkit.close();

const daytona = new DaytonaSandboxToolkit({ baseURL: `${url}/daytona/api` });
const theirs = daytona.getSandbox<{ id: string; process: { executeCommand(command: string): Promise<{ result: string }> } }>();
await theirs.start();
assert.equal((await theirs.process!.executeCommand('echo direct')).result.trim(), 'direct');
await daytona.close();
