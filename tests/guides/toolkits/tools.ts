// The four tools, as a model calls them.
import assert from 'node:assert/strict';
import { DaytonaSandboxToolkit, E2BSandboxToolkit, type SandboxToolkit } from 'atoll-sandbox';

const url = process.env['ATOLL_URL'];

async function callTools(provider: string, toolkit: SandboxToolkit): Promise<void> {
  const tools = toolkit.getTools();
  const call = (name: string, args: Record<string, unknown>) => tools.find((tool) => tool.name === `sandbox_${provider}_${name}`)!.execute(args);
  const code = { python: 'print(6 * 7)', js: 'console.log(6 * 7)', javascript: 'console.log(6 * 7)', node: 'console.log(6 * 7)', bash: 'echo $((6 * 7))', sh: 'echo $((6 * 7))' };
  for (const [language, text] of Object.entries(code)) {
    assert.deepEqual(JSON.parse(await call('run', { code: text, language, timeoutSeconds: 20 })), { output: '42\n', exitCode: 0 }, language);
  }
  assert.deepEqual(JSON.parse(await call('run', { code: 'print("no language is python")' })), { output: 'no language is python\n', exitCode: 0 });
  assert.deepEqual(JSON.parse(await call('shell', { command: 'echo hello; exit 3', timeoutSeconds: 20 })), { output: 'hello\n', exitCode: 3 });
  assert.equal(await call('write_file', { path: '/tmp/note.txt', contents: 'a note' }), 'ok');
  assert.equal(await call('read_file', { path: '/tmp/note.txt' }), 'a note');
  assert.equal(await call('write_file', { path: '/tmp/bytes', contents: '/wD+', encoding: 'base64' }), 'ok');
  assert.equal(await call('read_file', { path: '/tmp/bytes', encoding: 'base64' }), '/wD+');
  assert.equal(await call('read_file', { path: '/tmp/none' }), '[file not found]');
}

const kits = { e2b: new E2BSandboxToolkit({ baseURL: `${url}/e2b` }), daytona: new DaytonaSandboxToolkit({ baseURL: `${url}/daytona/api` }) };
for (const [provider, toolkit] of Object.entries(kits)) {
  try {
    await callTools(provider, toolkit);
  } finally {
    await toolkit.close();
  }
}
