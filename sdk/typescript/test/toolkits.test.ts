// The toolkits: one suite for every back end, against a real server. E2B's and Daytona's toolkits use the
// vendors' own packages, unmodified.
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { execFileSync } from 'node:child_process';
import { after, describe, test } from 'node:test';
import { Sandbox } from 'e2b';
import {
  type AgentModel,
  Atoll,
  AtollSandboxToolkit,
  type CloudSandbox,
  DaytonaSandboxToolkit,
  DockerSandboxToolkit,
  E2BSandboxToolkit,
  LocalSandboxToolkit,
  NotFoundError,
  SandboxAgent,
  SandboxToolkit,
} from 'atoll-sandbox';
import { apiKey, collect, INTERPRETER, url, word } from './world.js';

const BACKENDS = {
  atoll: (more = {}) => new AtollSandboxToolkit({ apiKey, baseURL: url, ...more }),
  e2b: (more = {}) => new E2BSandboxToolkit({ apiKey, baseURL: `${url}/e2b`, ...more }),
  daytona: (more = {}) => new DaytonaSandboxToolkit({ apiKey, baseURL: `${url}/daytona/api`, ...more }),
};

const tool = (toolkit: SandboxToolkit, name: string) => {
  const found = toolkit.getTools().find((each) => each.name === name);
  assert.ok(found, `${name} is one of ${toolkit.getTools().map((each) => each.name)}`);
  return (args: Record<string, unknown>) => found.execute(args);
};

for (const [provider, make] of Object.entries(BACKENDS)) {
  describe(`the toolkit of ${provider}`, { concurrency: 1 }, () => {
    const toolkit = make();
    after(() => toolkit.close());

    test('has four tools by name, with the parameters and return strings of the interface', async () => {
      const tools = toolkit.getTools();
      const names = ['run', 'shell', 'write_file', 'read_file'].map((what) => `sandbox_${provider}_${what}`);
      assert.deepEqual(tools.map(({ name }) => name), names);
      assert.deepEqual(
        tools.map(({ parameters }) => [Object.keys(parameters.properties), parameters.required]),
        [
          [['code', 'language', 'timeoutSeconds'], ['code']],
          [['command', 'timeoutSeconds'], ['command']],
          [['path', 'contents', 'encoding'], ['path', 'contents']],
          [['path', 'encoding'], ['path']],
        ],
      );
      assert.equal(toolkit.getSandbox().providerId, provider);
    });

    test('takes every name of a language', async () => {
      const run = tool(toolkit, `sandbox_${provider}_run`);
      const code = { python: 'print(1)', node: 'console.log(1)', javascript: 'console.log(1)', js: 'console.log(1)', shell: 'echo 1', bash: 'echo 1', sh: 'echo 1' };
      for (const [language, text] of Object.entries(code)) assert.deepEqual(JSON.parse(await run({ code: text, language })), { output: '1\n', exitCode: 0 }, language);
    });

    test('runs python, node and shell code', async () => {
      const run = tool(toolkit, `sandbox_${provider}_run`);
      assert.deepEqual(JSON.parse(await run({ code: 'print(6 * 7)' })), { output: '42\n', exitCode: 0 });
      assert.deepEqual(JSON.parse(await run({ code: 'console.log(6 * 7)', language: 'node' })), { output: '42\n', exitCode: 0 });
      const modern = 'import { basename } from "node:path";\nconsole.log(await Promise.resolve(basename("/a/b")));';
      assert.deepEqual(JSON.parse(await run({ code: modern, language: 'node' })), { output: 'b\n', exitCode: 0 });
      const shell = 'for n in 1 2; do echo "$n"; done; echo problem >&2; exit 3';
      assert.deepEqual(JSON.parse(await run({ code: shell, language: 'shell' })), { output: '1\n2\nproblem\n', exitCode: 3 });
    });

    test('runs shell commands', async () => {
      const shell = tool(toolkit, `sandbox_${provider}_shell`);
      assert.deepEqual(JSON.parse(await shell({ command: `echo "it's" $((6*7)) && echo "a\\$b"` })), { output: "it's 42\na$b\n", exitCode: 0 });
      assert.deepEqual(JSON.parse(await shell({ command: 'exit 7' })), { output: '', exitCode: 7 });
    });

    test('writes and reads files, text and base64', async () => {
      const write = tool(toolkit, `sandbox_${provider}_write_file`);
      const read = tool(toolkit, `sandbox_${provider}_read_file`);
      assert.equal(await write({ path: '/tmp/deep/er/a.txt', contents: 'héllo\n' }), 'ok');
      assert.equal(await read({ path: '/tmp/deep/er/a.txt' }), 'héllo\n');
      assert.equal(await write({ path: '/tmp/b.bin', contents: '/wD+', encoding: 'base64' }), 'ok');
      assert.equal(await read({ path: '/tmp/b.bin', encoding: 'base64' }), '/wD+');
      assert.equal(await read({ path: '/tmp/none' }), '[file not found]');
      assert.equal(await toolkit.getSandbox().readFile('/tmp/none'), null);
    });

    test('ends code at its time limit with 124 and keeps its output', async () => {
      const sandbox = toolkit.getSandbox();
      const code = 'import time\nprint("before", flush=True)\nopen("/tmp/pid", "w").write(str(__import__("os").getpid()))\ntime.sleep(600)';
      assert.deepEqual(await sandbox.run(code, { timeoutSeconds: 3 }), { output: 'before\n', exitCode: 124, timedOut: true });
      const alive = await sandbox.shell('for i in $(seq 100); do kill -0 $(cat /tmp/pid) 2>/dev/null || exit 5; sleep 0.1; done');
      assert.equal(alive.exitCode, 5, 'the process has ended');
      assert.deepEqual(await sandbox.shell('exit 124'), { output: '', exitCode: 124 });
      const said = JSON.parse(await tool(toolkit, `sandbox_${provider}_shell`)({ command: 'sleep 600', timeoutSeconds: 1 }));
      assert.deepEqual(said, { output: '', exitCode: 124, timedOut: true });
    });

    test('gives the object of the vendor once the sandbox exists', async () => {
      const fresh = make();
      const sandbox = fresh.getSandbox<Record<string, unknown>>();
      const member = { atoll: 'commands', e2b: 'commands', daytona: 'process' }[provider]!;
      assert.deepEqual([sandbox.vendor, sandbox[member]], [undefined, undefined]);
      await sandbox.start();
      const vendor = sandbox.vendor as Record<string, unknown>;
      assert.ok(vendor);
      assert.equal(sandbox[member], vendor[member]);
      assert.ok(member in sandbox && 'run' in sandbox);
      assert.equal((await sandbox.shell('echo own')).output, 'own\n', 'its own members stay');
      await fresh.close();
      assert.deepEqual([sandbox.vendor], [undefined]);
    });

    test('gives variables to code', async () => {
      const code = 'import os; print(os.environ["NAME"])';
      assert.equal((await toolkit.getSandbox().run(code, { env: { NAME: "a b'c" } })).output, "a b'c\n");
    });

    test('tells the model which argument is wrong', async () => {
      const run = tool(toolkit, `sandbox_${provider}_run`);
      assert.equal(await run({}), 'error: the argument code is missing');
      assert.equal(await run({ code: '1', language: 'cobol' }), 'error: language must be one of python, node, javascript, js, shell, bash, sh');
      assert.equal(await run({ code: '1', timeoutSeconds: '5' }), 'error: timeoutSeconds must be a number');
    });
  });

  test(`the toolkit of ${provider} creates its sandbox at the first call and ends it with close`, async () => {
    const name = word('lazy');
    const toolkit = make({ defaultTimeoutSeconds: 20 });
    const sandbox = toolkit.getSandbox();
    await sandbox.writeFile(`/tmp/${name}`, 'seed');
    assert.equal(await tool(toolkit, `sandbox_${provider}_read_file`)({ path: `/tmp/${name}` }), 'seed');
    await toolkit.close();
    await toolkit.close();
    await assert.rejects(sandbox.shell('true'), /the sandbox is closed/);
  });

  test(`a sandbox of ${provider} that ended by itself is replaced at the next call`, async () => {
    await using toolkit = make();
    const shell = tool(toolkit, `sandbox_${provider}_shell`);
    const id = JSON.parse(await shell({ command: 'uname -n' })).output.trim();
    await (await new Atoll({ url, apiKey }).sandboxes.get(id)).delete();
    assert.match(await shell({ command: 'true' }), /^error: the sandbox has ended/);
    assert.equal(JSON.parse(await shell({ command: 'echo again' })).output, 'again\n');
  });

  test(`a network error of ${provider} rejects, and its text reaches the model`, async () => {
    const port = await closedPort();
    const nowhere = `http://127.0.0.1:${port}`;
    const path = { atoll: '', e2b: '/e2b', daytona: '/daytona/api' }[provider];
    const toolkit = make({ baseURL: `${nowhere}${path}` });
    const failure = await toolkit.getSandbox().run('print(1)').then(() => assert.fail('it must reject'), (error: Error) => error);
    assert.ok(failure instanceof Error && failure.message.length > 0);
    const said = await tool(toolkit, `sandbox_${provider}_run`)({ code: 'print(1)' });
    assert.ok(said.startsWith(`error: ${failure.message}`), said);
    assert.match(said, /ECONNREFUSED/);
    await toolkit.close();
  });
}

test('a package that reaches sandboxes only over TLS is told how to get it', async () => {
  // As `@e2b/sdk`, the older name of the package, which takes no address of sandboxes.
  const older = { Sandbox: { create: (template: string, { sandboxUrl: _, ...options }: { sandboxUrl?: string }) => Sandbox.create(template, options) } };
  await using toolkit = new E2BSandboxToolkit({ apiKey, baseURL: `${url}/e2b`, sdk: older });
  const text = `the package reaches sandboxes only over TLS, and ${url}/e2b is plain HTTP: run \`atoll tls init\` once on the server, then set what \`atoll env e2b --tls\` prints`;
  await assert.rejects(toolkit.getSandbox().run('print(1)'), { message: text });
  await assert.rejects(toolkit.getSandbox().readFile('/etc/hostname'), { message: text });
  const said = await tool(toolkit, 'sandbox_e2b_shell')({ command: 'true' });
  assert.ok(said.startsWith(`error: ${text}`) && !/SSL/.test(said), said);
});

async function closedPort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}

test('a toolkit that is never used creates no sandbox', async () => {
  const label = word('unused');
  const toolkit = new AtollSandboxToolkit({ apiKey, baseURL: url, create: { labels: { test: label } } });
  const made = async () => (await collect(new Atoll({ url, apiKey }).sandboxes.list({ labels: { test: label } }))).length;
  toolkit.getTools();
  toolkit.getSandbox();
  assert.equal(await made(), 0);
  await Promise.all([toolkit.getSandbox().start(), toolkit.getSandbox().shell('true'), toolkit.getSandbox().shell('true')]);
  assert.equal(await made(), 1, 'calls at once share one sandbox');
  await toolkit.close();
  assert.equal(await made(), 0);
});

test('without a key every constructor throws: missing API key', () => {
  for (const make of [AtollSandboxToolkit, E2BSandboxToolkit, DaytonaSandboxToolkit, DockerSandboxToolkit, LocalSandboxToolkit]) {
    const saved = { ...process.env };
    for (const name of ['ATOLL_API_KEY', 'E2B_API_KEY', 'DAYTONA_API_KEY']) delete process.env[name];
    try {
      assert.throws(() => new make(), { message: 'missing API key' });
    } finally {
      Object.assign(process.env, saved);
    }
  }
});

test('without the package of the vendor the constructor throws what is required', (t) => {
  // A folder where no package of a vendor is found: not below that of the tests.
  const folder = mkdtempSync(join(homedir(), 'atoll-sdk-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const installed = new URL('../node_modules/atoll-sandbox', import.meta.url);
  mkdirSync(join(folder, 'node_modules'));
  cpSync(installed, join(folder, 'node_modules/atoll-sandbox'), { recursive: true });
  const program = `
    import { E2BSandboxToolkit, DaytonaSandboxToolkit, AtollSandboxToolkit } from 'atoll-sandbox';
    const said = (Kit) => { try { new Kit({ apiKey: 'k' }); return 'made'; } catch (error) { return error.message; } };
    console.log(JSON.stringify([E2BSandboxToolkit, DaytonaSandboxToolkit, AtollSandboxToolkit].map(said)));`;
  const said = JSON.parse(execFileSync(process.execPath, ['--input-type=module', '-e', program], { cwd: folder, encoding: 'utf8' }));
  assert.deepEqual(said, [
    '@e2b/sdk is required: npm install e2b',
    '@daytonaio/sdk is required: npm install @daytonaio/sdk',
    'made',
  ]);
});

test('toolkits of other providers have tools of their name', async () => {
  const names = (toolkit: SandboxToolkit) => toolkit.getTools().map(({ name }) => name);
  assert.equal(names(new DockerSandboxToolkit({ apiKey }))[0], 'sandbox_docker_run');
  assert.equal(names(new LocalSandboxToolkit({ apiKey }))[1], 'sandbox_local_shell');
  await using toolkit = new AtollSandboxToolkit({ apiKey, baseURL: url, provider: 'container', template: INTERPRETER });
  assert.equal(JSON.parse(await tool(toolkit, 'sandbox_container_shell')({ command: 'echo yes' })).output, 'yes\n');
  const unknown = new AtollSandboxToolkit({ apiKey, baseURL: url, provider: 'nowhere' });
  await assert.rejects(unknown.getSandbox().start(), NotFoundError);
});

test('the toolkit of the provider local runs on this machine', async () => {
  await using toolkit = new LocalSandboxToolkit({ apiKey, baseURL: url });
  const shell = tool(toolkit, 'sandbox_local_shell');
  await toolkit.getSandbox().writeFile('a.txt', 'here');
  assert.deepEqual(JSON.parse(await shell({ command: 'cat a.txt' })), { output: 'here', exitCode: 0 });
});

test('two toolkits serve one agent', async () => {
  const script: { name: string; arguments: Record<string, unknown> }[] = [
    { name: 'sandbox_e2b_write_file', arguments: { path: '/tmp/number', contents: '20' } },
    { name: 'sandbox_atoll_run', arguments: { code: 'print(22)' } },
    { name: 'sandbox_e2b_shell', arguments: { command: 'cat /tmp/number' } },
    { name: 'sandbox_nowhere_run', arguments: {} },
  ];
  const model = scripted(script);
  await using agent = new SandboxAgent({ model, toolkits: [BACKENDS.e2b(), BACKENDS.atoll()] });
  const turn = await agent.run('Add the numbers.');
  assert.equal(agent.tools.length, 8);
  assert.deepEqual(
    turn.calls.slice(0, 3).map(({ answer }) => answer),
    ['ok', '{"output":"22\\n","exitCode":0}', '{"output":"20","exitCode":0}'],
  );
  assert.match(turn.calls[3]!.answer, /^error: there is no tool sandbox_nowhere_run; there are sandbox_e2b_run/);
  assert.equal(turn.text, 'done after 4 calls');
});

/** A model that makes these calls one after the other. */
function scripted(script: { name: string; arguments: Record<string, unknown> }[]): AgentModel {
  let calls = 0;
  return async () => {
    const next = script.shift();
    if (!next) return { text: `done after ${calls} calls` };
    return { toolCalls: [{ id: `call-${++calls}`, ...next }] };
  };
}

test('an agent keeps its workspace from turn to turn, and from process to process by its thread', async () => {
  const thread = word('thread');
  const steps: Parameters<typeof scripted>[0] = [{ name: 'sandbox_atoll_write_file', arguments: { path: 'notes.txt', contents: 'from turn one' } }];
  const toolkit = () => new AtollSandboxToolkit({ apiKey, baseURL: url, thread });
  const first = new SandboxAgent({ model: scripted(steps), toolkits: [toolkit()], instructions: 'Keep notes.' });
  await first.run('Write a note.');
  steps.push({ name: 'sandbox_atoll_read_file', arguments: { path: 'notes.txt' } });
  assert.equal((await first.run('What did you write?')).calls[0]!.answer, 'from turn one');
  assert.equal(first.messages.filter(({ role }) => role === 'user').length, 2);
  await first.close();
  const client = new Atoll({ url, apiKey });
  const bound = await client.threads.get(thread);
  assert.equal(bound.phase, 'paused');
  const later = scripted([{ name: 'sandbox_atoll_shell', arguments: { command: 'cat notes.txt' } }]);
  const second = new SandboxAgent({ model: later, toolkits: [toolkit()] });
  assert.equal((await second.run('What was it?')).calls[0]!.answer, '{"output":"from turn one","exitCode":0}');
  await (await client.sandboxes.get(bound.sandbox!)).delete();
});

test('any CloudSandbox can be the workspace of an agent', async () => {
  const files = new Map<string, string>();
  const memory: CloudSandbox = {
    providerId: 'memory',
    start: async () => {},
    run: async (code) => ({ output: `ran ${code}`, exitCode: 0 }),
    shell: async () => Promise.reject(new Error('connect ECONNREFUSED')),
    writeFile: async (path, contents) => void files.set(path, String(contents)),
    readFile: async (path) => files.get(path) ?? null,
    close: async () => files.clear(),
  };
  const model = scripted([
    { name: 'sandbox_memory_write_file', arguments: { path: 'a', contents: 'b' } },
    { name: 'sandbox_memory_run', arguments: { code: '1' } },
    { name: 'sandbox_memory_shell', arguments: { command: 'x' } },
  ]);
  const agent = new SandboxAgent({ model, sandbox: memory });
  const { calls } = await agent.run('go');
  assert.deepEqual(calls.map(({ answer }) => answer), ['ok', '{"output":"ran 1","exitCode":0}', 'error: connect ECONNREFUSED']);
  assert.deepEqual([...files], [['a', 'b']]);
  await agent.close();
  assert.equal(files.size, 0);
});

test('a model gets the beginning and the end of a long output', async () => {
  const long = { providerId: 'x', run: async () => ({ output: 'a'.repeat(600) + 'z'.repeat(600), exitCode: 0 }) } as unknown as CloudSandbox;
  const said = JSON.parse(await new SandboxToolkit(long, { maxOutputChars: 1_000 }).getTools()[0]!.execute({ code: '' }));
  assert.equal(said.output, `${'a'.repeat(500)}\n[… 200 characters left out …]\n${'z'.repeat(500)}`);
});
