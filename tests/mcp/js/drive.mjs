// Drives every tool of Atoll's MCP server with the official TypeScript client.
//
//     drive.mjs http|stdio legacy|modern
//
// Reads MCP_URL and MCP_KEY for http, and ATOLL_* and ATOLL_BIN for stdio.

import assert from 'node:assert/strict';
import process from 'node:process';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const TOOLS = [
  'sandbox_create', 'sandbox_list', 'sandbox_pause', 'sandbox_resume', 'sandbox_fork', 'sandbox_delete', 'shell', 'shell_start',
  'shell_poll', 'run_code', 'file_read', 'file_write', 'file_edit', 'file_list', 'file_search', 'preview', 'egress_explain',
  'snapshot', 'rollback',
];
const [transportName, era] = process.argv.slice(2);
const REVISION = { legacy: '2025-11-25', modern: '2026-07-28' }[era];
const called = new Set();

function transport() {
  if (transportName === 'stdio') {
    const names = Object.keys(process.env).filter((name) => /^(ATOLL_|PATH$|HOME$)/.test(name));
    const env = Object.fromEntries(names.map((name) => [name, process.env[name]]));
    return new StdioClientTransport({ command: process.env.ATOLL_BIN, args: ['mcp'], env });
  }
  const headers = { Authorization: `Bearer ${process.env.MCP_KEY}` };
  return new StreamableHTTPClientTransport(new URL(process.env.MCP_URL), { requestInit: { headers } });
}

const mode = era === 'modern' ? { pin: REVISION } : 'legacy';
const client = new Client({ name: 'drive-js', version: '1' }, { versionNegotiation: { mode } });
await client.connect(transport());

async function call(tool, args = {}, options = undefined) {
  called.add(tool);
  const result = await client.callTool({ name: tool, arguments: args }, options);
  assert.ok(!result.isError, `${tool} ${JSON.stringify(args)}: ${JSON.stringify(result.content)}`);
  assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  return result.structuredContent;
}

async function fails(tool, says, args = {}) {
  const result = await client.callTool({ name: tool, arguments: args });
  assert.ok(result.isError, `${tool} did not fail`);
  assert.ok(result.content[0].text.includes(says), result.content[0].text);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function commands() {
  const ran = await call('shell', { command: 'echo out; echo err >&2; exit 3' });
  assert.deepEqual([ran.exit_code, ran.stdout, ran.stderr], [3, 'out\n', 'err\n']);
  const started = await call('shell_start', { command: 'echo one; exit 4' });
  const polled = await call('shell_poll', { id: started.id, wait_s: 20 });
  assert.deepEqual([polled.running, polled.exit_code, polled.output], [false, 4, 'one\n']);
  const done = await call('run_code', { code: 'x = 40\nx + 2' });
  assert.deepEqual(done.results, ['42']);
  return ran.sandbox;
}

async function files() {
  await call('file_write', { path: '/tmp/js/a.txt', content: 'hello\nworld\n' });
  await call('file_edit', { path: '/tmp/js/a.txt', edits: [{ find: 'world', replace: 'there' }] });
  assert.equal((await call('file_read', { path: '/tmp/js/a.txt' })).content, 'hello\nthere\n');
  assert.equal((await call('file_list', { path: '/tmp/js' })).entries[0].path, '/tmp/js/a.txt');
  assert.equal((await call('file_search', { pattern: 'there', path: '/tmp/js' })).matches[0].line, 2);
  const content = await client.readResource({ uri: 'atoll://sandboxes/own/tmp/js/a.txt' });
  assert.equal(content.contents[0].text, 'hello\nthere\n');
  const { resources } = await client.listResources();
  assert.ok(resources[0].uri.startsWith('atoll://templates/'));
  const { resourceTemplates } = await client.listResourceTemplates();
  assert.equal(resourceTemplates.length, 1);
}

async function life(own) {
  const made = await call('sandbox_create', { name: 'js-made', network: 'deny-all' });
  assert.notEqual(made.sandbox, own);
  await call('shell', { sandbox: 'js-made', command: 'echo kept > kept' });
  const taken = await call('snapshot', { sandbox: 'js-made' });
  await call('shell', { sandbox: 'js-made', command: 'rm kept' });
  await call('rollback', { sandbox: 'js-made', snapshot: taken.snapshot });
  assert.equal((await call('shell', { sandbox: 'js-made', command: 'cat kept' })).stdout, 'kept\n');
  const forked = await call('sandbox_fork', { sandbox: 'js-made' });
  assert.equal((await call('sandbox_pause', { sandbox: 'js-made' })).phase, 'paused');
  assert.equal((await call('sandbox_resume', { sandbox: 'js-made' })).phase, 'running');
  assert.equal((await call('egress_explain', { sandbox: 'js-made', destination: 'example.com' })).allowed, false);
  assert.ok((await call('preview', { sandbox: 'js-made', port: 3000 })).url.includes('atoll_token='));
  const known = (await call('sandbox_list', { limit: 100 })).items.map((one) => one.sandbox);
  for (const sandbox of [made.sandbox, forked.items[0].sandbox]) {
    assert.ok(known.includes(sandbox));
    assert.ok((await call('sandbox_delete', { sandbox })).deleted);
  }
}

async function progressAndCancelling() {
  const told = [];
  await call('shell', { command: 'sleep 3' }, { onprogress: (progress) => told.push(progress.progress) });
  assert.ok(told.length > 0, 'no progress was told');
  const mark = `sleep 5${Date.now() % 100000}`;
  const running = `pgrep -f '^${mark}' >/dev/null && echo yes || echo no`;
  const abort = new AbortController();
  const cancelled = client.callTool({ name: 'shell', arguments: { command: mark } }, { signal: abort.signal });
  cancelled.catch(() => {});
  while ((await call('shell', { command: running })).stdout !== 'yes\n') await sleep(50);
  abort.abort();
  await assert.rejects(cancelled);
  const deadline = Date.now() + 30_000;
  while ((await call('shell', { command: running })).stdout !== 'no\n') {
    assert.ok(Date.now() < deadline, 'a cancelled command runs on');
    await sleep(50);
  }
}

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), TOOLS);
const own = await commands();
await files();
await life(own);
await progressAndCancelling();
await fails('shell', 'sandbox_not_found', { sandbox: 'aaaaaaaaaaaaaaaaaaaa', command: 'true' });
await fails('shell', 'no_such', { command: 'true', no_such: 1 });
await assert.rejects(client.callTool({ name: 'no_such_tool', arguments: {} }), (error) => error.code === -32602);
assert.deepEqual(new Set(TOOLS), called);
if (transportName === 'http') await call('sandbox_delete');
await client.close();
console.log(`${transportName} ${era}: ${called.size} tools`);
