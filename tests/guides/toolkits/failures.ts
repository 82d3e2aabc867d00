// What a program sees when something is missing, takes too long, or cannot be reached.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { DaytonaSandboxToolkit, E2BSandboxToolkit } from 'atoll-sandbox';

const url = process.env['ATOLL_URL'];
const apiKey = process.env['E2B_API_KEY'];

for (const name of ['E2B_API_KEY', 'DAYTONA_API_KEY']) delete process.env[name];
assert.throws(() => new E2BSandboxToolkit(), { message: 'missing API key' });
assert.throws(() => new DaytonaSandboxToolkit(), { message: 'missing API key' });

const toolkit = new E2BSandboxToolkit({ apiKey: apiKey!, baseURL: `${url}/e2b` });
const late = await toolkit.getSandbox().run('import time\nprint("begun", flush=True)\ntime.sleep(60)', { timeoutSeconds: 1 });
assert.deepEqual(late, { timedOut: true, exitCode: 124, output: 'begun\n' });
const left = await toolkit.getSandbox().shell('ls /tmp/.sandbox-run-* 2>/dev/null | wc -l');
assert.equal(left.output.trim(), '0', 'no file of the code is left');
await toolkit.close();

const nowhere = new E2BSandboxToolkit({ apiKey: apiKey!, baseURL: 'http://127.0.0.1:9/e2b' });
const failure = await nowhere.getSandbox().run('print(1)').then(() => assert.fail('it must reject'), (error: Error) => error);
assert.ok((await nowhere.getTools()[0]!.execute({ code: 'print(1)' })).startsWith(`error: ${failure.message}`), 'the model sees the text');
await nowhere.close();

// A folder where only our package is installed.
const folder = mkdtempSync(join(homedir(), 'toolkits-'));
const installed = dirname(createRequire(import.meta.url).resolve('atoll-sandbox/package.json'));
cpSync(installed, join(folder, 'node_modules/atoll-sandbox'), { recursive: true });
const program = "import { E2BSandboxToolkit } from 'atoll-sandbox'; try { new E2BSandboxToolkit({ apiKey: 'k' }) } catch (error) { console.log(error.message) }";
const said = execFileSync(process.execPath, ['--input-type=module', '-e', program], { cwd: folder, encoding: 'utf8' });
rmSync(folder, { recursive: true });
assert.ok(said.startsWith('@e2b/sdk is required'), said);
