// The toolkits at providers that lack something: one loses the files of a stop, one cannot pause. Started by
// tests/tests/sdk_typescript.rs with the providers `bay` (AgentBay) and `cloud` (Daytona).
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { test } from 'node:test';
import { AtollSandboxToolkit } from 'atoll-sandbox';
import { apiKey, client, collect, url } from './world.js';

const shell = (toolkit: AtollSandboxToolkit, command: string) => toolkit.getTools()[1]!.execute({ command });

test('a sandbox of a provider that loses files in a stop has a lifetime, which every use renews', async () => {
  const toolkit = new AtollSandboxToolkit({ apiKey, baseURL: url, provider: 'bay', idleTimeoutSeconds: 60 });
  assert.equal(JSON.parse(await shell(toolkit, 'echo here')).output, 'here\n');
  const [sandbox] = await collect(client.sandboxes.list());
  const before = await sandbox!.refresh();
  assert.deepEqual([before.onTimeout, typeof before.timeoutAt], ['delete', 'string']);
  const slow = toolkit.getTools()[1]!.execute({ command: 'echo long', timeoutSeconds: 120 });
  assert.equal(JSON.parse(await slow).output, 'long\n');
  assert.ok(Date.parse((await sandbox!.refresh()).timeoutAt!) - Date.parse(before.timeoutAt!) > 30_000, 'the lifetime covers the command');
  await toolkit.close();
  assert.equal((await collect(client.sandboxes.list())).length, 0);
});

test('the sandbox of a thread at a vendor does not run on after close', async () => {
  const thread = 'at-the-vendor';
  const first = new AtollSandboxToolkit({ apiKey, baseURL: url, provider: 'cloud', thread });
  assert.equal(JSON.parse(await shell(first, 'echo kept > note && cat note')).output, 'kept\n');
  const [sandbox] = await collect(client.sandboxes.list());
  assert.equal((await sandbox!.refresh()).autoPauseS, 600);
  await first.close();
  assert.match((await sandbox!.refresh()).phase, /^(paused|stopped)$/);
  await sandbox!.delete();
});

test('the sandbox of a thread at a provider that cannot pause stops', async (t) => {
  const asked: string[] = [];
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const timers = Object.keys(JSON.parse(body || '{}')).filter((name) => name.startsWith('auto_'));
    asked.push(`${request.method} ${new URL(request.url!, 'http://a').pathname} ${timers}`.trim());
    const isPause = timers.includes('auto_pause_s') || request.url!.includes('/pause');
    response.writeHead(isPause ? 501 : 200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(isPause ? { code: 'unsupported', message: 'provider local lacks the capability pause' } : { id: 'a'.repeat(20), phase: 'stopped' }));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const { port } = server.address() as { port: number };
  const toolkit = new AtollSandboxToolkit({ apiKey, baseURL: `http://127.0.0.1:${port}`, provider: 'local', thread: 'talk' });
  await toolkit.getSandbox().start();
  await toolkit.close();
  const one = `/v1/sandboxes/${'a'.repeat(20)}`;
  assert.deepEqual(asked, ['POST /v1/sandboxes auto_pause_s', 'POST /v1/sandboxes auto_stop_s', `POST ${one}/pause`, `POST ${one}/stop`]);
});
