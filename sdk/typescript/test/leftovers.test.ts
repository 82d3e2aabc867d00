// What is left after each helper of this SDK ended, and what ends that which a program did not close: everything that a helper
// creates on its own has a lifetime or an owner. A tenant of its own, so that nothing of another test is in the lists.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Atoll, AtollSandboxToolkit, DaytonaSandboxToolkit, E2BSandboxToolkit, type SandboxInfo, SandboxAgent, type SandboxToolkit } from 'atoll-sandbox';
import { adminKey, collect, url, word } from './world.js';

const TENANT = word('leftovers');
const THREAD = 'conversation-of-leftovers';
let apiKey = '';
let mine: Atoll;

const asAdmin = async (method: string, path: string, body?: object) => {
  const headers = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
  const answer = await fetch(`${url}${path}`, { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.clone().text()}`);
};

before(async () => {
  await asAdmin('POST', '/v1/tenants', { name: TENANT });
  const made = await new Atoll({ url, apiKey: adminKey }).keys.create({ name: 'leftovers', tenant: TENANT });
  apiKey = made.secret;
  mine = new Atoll({ url, apiKey });
});
after(async () => {
  for await (const sandbox of mine.sandboxes.list()) await sandbox.delete();
});

/** The helpers that create a sandbox on their own, each used once. */
const HELPERS: Record<string, () => SandboxToolkit> = {
  AtollSandboxToolkit: () => new AtollSandboxToolkit({ apiKey, baseURL: url }),
  E2BSandboxToolkit: () => new E2BSandboxToolkit({ apiKey, baseURL: `${url}/e2b` }),
  DaytonaSandboxToolkit: () => new DaytonaSandboxToolkit({ apiKey, baseURL: `${url}/daytona/api` }),
};
const inThread = () => new AtollSandboxToolkit({ apiKey, baseURL: url, thread: THREAD });

const use = async (toolkit: SandboxToolkit) => {
  const answer = await toolkit.getTools()[0]!.execute({ code: 'open("/tmp/a", "w").write("b")\nprint(1)' });
  assert.equal(JSON.parse(answer).output, '1\n', answer);
};

/** Everything of the tenant that outlives a request. */
async function left(): Promise<Record<string, unknown[]>> {
  const threads = (await collect(mine.threads.list())).map(({ thread }) => thread);
  const templates = (await mine.templates.list()).filter(({ tenant }) => tenant).map(({ name }) => name);
  return {
    sandboxes: (await collect(mine.sandboxes.list())).map(({ info }) => ending(info)),
    snapshots: await collect(mine.snapshots.list()),
    volumes: await mine.volumes.list(),
    secrets: await mine.secrets.list(),
    keys: (await mine.keys.list()).map(({ name }) => name),
    templates,
    threads,
  };
}

/** What ends a sandbox that nothing uses any more, in words. */
function ending(info: SandboxInfo): string {
  if (info.timeoutAt) return `${info.onTimeout} at the end of its lifetime`;
  if (typeof info.autoStopS === 'number' && info.autoDeleteS === 0) return 'deleted when idle';
  if (info.thread && info.phase === 'paused') return `paused, owned by ${info.thread}`;
  if (info.thread && typeof info.autoPauseS === 'number') return `pauses when idle, owned by ${info.thread}`;
  return 'runs without an end';
}

const NOTHING = { sandboxes: [], snapshots: [], volumes: [], secrets: [], keys: ['leftovers'], templates: [], threads: [] };

for (const [name, make] of Object.entries(HELPERS)) {
  test(`${name} leaves nothing`, async () => {
    const toolkit = make();
    await use(toolkit);
    await toolkit.close();
    assert.deepEqual(await left(), NOTHING);
  });

  test(`a program that ends without closing ${name} leaves a sandbox that ends by itself`, async () => {
    const toolkit = make();
    await use(toolkit);
    const { sandboxes, ...rest } = await left();
    const expected = name === 'E2BSandboxToolkit' ? 'delete at the end of its lifetime' : 'deleted when idle';
    assert.deepEqual([sandboxes, { sandboxes: [], ...rest }], [[expected], NOTHING]);
    await toolkit.close();
  });
}

test('an agent leaves nothing', async () => {
  const model = async ({ messages }: { messages: readonly { role: string }[] }) =>
    messages.at(-1)!.role === 'tool' ? { text: 'done' } : { toolCalls: [{ id: 'c', name: 'sandbox_atoll_shell', arguments: { command: 'true' } }] };
  await using agent = new SandboxAgent({ model, toolkits: [new AtollSandboxToolkit({ apiKey, baseURL: url })] });
  await agent.run('go');
  await agent.close();
  assert.deepEqual(await left(), NOTHING);
});

test('a toolkit of a thread leaves the sandbox of the thread, paused', async () => {
  const toolkit = inThread();
  await use(toolkit);
  assert.deepEqual((await left())['sandboxes'], [`pauses when idle, owned by ${THREAD}`]);
  await toolkit.close();
  assert.deepEqual(await left(), { ...NOTHING, sandboxes: [`paused, owned by ${THREAD}`], threads: [THREAD] });
  for await (const sandbox of mine.sandboxes.list()) await sandbox.delete();
  await mine.threads.end(THREAD);
});

test('a sandbox that is used in a block leaves nothing, with its terminals, sessions, code and previews', async () => {
  {
    await using sandbox = await mine.sandboxes.create('code-interpreter-slim');
    const terminal = await sandbox.terminals.open('main');
    terminal.close();
    await sandbox.sessions.create('work');
    await sandbox.code.run('1');
    await sandbox.previews.create(8000);
    await sandbox.commands.start('sleep 600');
  }
  assert.deepEqual(await left(), NOTHING);
});
