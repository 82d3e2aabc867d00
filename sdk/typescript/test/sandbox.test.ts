// The client against a real server: what a method does is seen in a sandbox.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import WebSocket from 'ws';
import { Atoll, ConflictError, InvalidError, NotFoundError, Sandbox, type CommandEvent, type SandboxEvent } from 'atoll-sandbox';
import { adminKey, apiKey, client, collect, INTERPRETER, sandbox, until, url, word } from './world.js';

describe('sandboxes', () => {
  test('are created, found, listed, changed and deleted', async (t) => {
    const name = word('life');
    const box = await sandbox(t, { name, memoryMib: 128, labels: { test_case: name }, env: { MY_NAME: 'x' }, network: 'deny-all' });
    assert.deepEqual([box.name, box.phase, box.info.memoryMib, box.info.labels], [name, 'running', 128, { test_case: name }]);
    assert.equal((await client.sandboxes.get(name)).id, box.id);
    assert.deepEqual((await collect(client.sandboxes.list({ labels: { test_case: name }, phase: ['running', 'paused'] }))).map(({ id }) => id), [box.id]);
    await box.update({ memoryMib: 256, labels: { test_case: name, more: '1' } });
    assert.deepEqual([box.info.memoryMib, box.info.labels['more']], [256, '1']);
    await box.delete();
    await assert.rejects(client.sandboxes.get(name), NotFoundError);
    assert.equal(box.phase, 'deleted');
  });

  test('are listed page by page', async (t) => {
    const label = word('page');
    for (let count = 0; count < 3; count++) await sandbox(t, { labels: { page: label } });
    const ids = (await collect(client.sandboxes.list({ labels: { page: label }, pageSize: 1 }))).map(({ id }) => id);
    assert.equal(new Set(ids).size, 3);
  });

  test('a create with the same idempotency key gives the same sandbox', async (t) => {
    const idempotencyKey = word('once');
    const first = await sandbox(t, { idempotencyKey });
    assert.equal((await client.sandboxes.create('debian', { idempotencyKey })).id, first.id);
  });

  test('await using deletes a sandbox, also one that is gone', async () => {
    let id: string;
    {
      await using box = await client.sandboxes.create('debian');
      id = box.id;
      await box.delete();
    }
    await assert.rejects(client.sandboxes.get(id).then((box) => box.phase === 'deleted' && Promise.reject(new Error('deleted'))));
  });

  test('Sandbox.create takes its client from the environment', async (t) => {
    const box = await Sandbox.create('debian');
    t.after(() => box.delete());
    assert.equal((await box.commands.run('echo yes')).stdout, 'yes\n');
  });

  test('pause, resume, stop, start, restart', async (t) => {
    const box = await sandbox(t);
    const counter = await box.commands.start('while :; do sleep 0.01; done');
    assert.equal((await box.pause()).phase, 'paused');
    assert.equal((await box.resume()).phase, 'running');
    assert.ok((await box.commands.list()).some(({ pid }) => pid === counter.pid), 'the process lives on');
    assert.equal((await box.stop()).phase, 'stopped');
    assert.equal((await box.start()).phase, 'running');
    assert.deepEqual(await box.commands.list(), []);
    assert.equal((await box.restart()).phase, 'running');
    assert.equal((await box.refresh()).phase, 'running');
  });

  test('hold, release, extend, awake, metrics', async (t) => {
    const box = await sandbox(t, { timeoutS: 600, autoPauseS: 300 });
    assert.equal((await box.hold(60, 'a test')).hold?.reason, 'a test');
    assert.ok((await box.awake()).because.includes('hold'));
    assert.ok(!(await box.release()).hold);
    const before = Date.parse(box.info.timeoutAt!);
    assert.ok(Date.parse((await box.extend(1_200)).timeoutAt!) > before);
    assert.ok((await box.metrics()).limits.memoryMib > 0);
  });

  test('snapshots, rollback, forks and lineage', async (t) => {
    const box = await sandbox(t);
    await box.files.write('state', 'one');
    const snapshot = await box.snapshot(word('snap'));
    await box.files.write('state', 'two');
    const [fork] = await box.fork(1, { labels: { kind: 'fork' } });
    t.after(() => fork!.delete());
    assert.equal(await fork!.files.readText('state'), 'two');
    assert.equal((await fork!.lineage()).parent, box.id);
    await box.rollback(snapshot);
    assert.equal(await box.files.readText('state'), 'one');
    const made = await client.sandboxes.create(null, { snapshot: snapshot.id });
    t.after(() => made.delete());
    assert.equal(await made.files.readText('state'), 'one');
    assert.ok((await collect(client.snapshots.list({ sandbox: box.id }))).some(({ id }) => id === snapshot.id));
    assert.equal((await client.snapshots.verify(snapshot.id)).id, snapshot.id);
    await client.snapshots.delete(snapshot.id);
  });

  test('threads keep their sandbox', async (t) => {
    const thread = word('thread');
    const box = await sandbox(t, { thread });
    assert.equal((await client.sandboxes.create('debian', { thread })).id, box.id);
    assert.equal((await client.threads.get(thread)).sandbox, box.id);
    assert.ok((await collect(client.threads.list())).some((each) => each.thread === thread));
  });
});

describe('commands', () => {
  test('give both streams and the code', async (t) => {
    const box = await sandbox(t);
    const done = await box.commands.run('echo out; echo err >&2; exit 3');
    assert.deepEqual([done.stdout, done.stderr, done.exitCode, done.timedOut, done.truncated], ['out\n', 'err\n', 3, false, false]);
    const options = { cwd: '/tmp', env: { A_B: "it's" }, stdin: 'in', timeoutS: 60 };
    assert.equal((await box.commands.run('pwd; echo "$A_B"; cat', options)).stdout, "/tmp\nit's\nin");
    const bytes = new Uint8Array([0xff, 0x00, 0x41]);
    const raw = await box.commands.run(['od', '-An', '-tx1'], { stdin: bytes });
    assert.equal(raw.stdout.trim(), 'ff 00 41');
    assert.equal((await box.commands.run(['id', '-un'], { user: 'root' })).stdout, 'root\n');
    const late = await box.commands.run('echo first; sleep 600', { timeoutS: 1 });
    assert.deepEqual([late.stdout, late.exitCode, late.timedOut], ['first\n', 124, true]);
    await assert.rejects(box.commands.run(''), InvalidError);
  });

  test('are followed as they run', async (t) => {
    const box = await sandbox(t);
    const events: CommandEvent[] = [];
    for await (const event of box.commands.stream('echo one; read -t 0.1 x < <(sleep 1); echo two >&2; printf "\\377"; exit 4')) events.push(event);
    assert.equal(events[0]!.type, 'start');
    // Each stream is in order. What is written to both at nearly the same time can arrive in either order.
    const written = (type: string) => events.flatMap((event) =>
      (event.type === 'stdout' || event.type === 'stderr') && event.type === type ? [event.bytes?.[0] ?? event.data] : []);
    assert.deepEqual([written('stdout'), written('stderr')], [['one\n', 0xff], ['two\n']]);
    assert.equal(events.at(-1)!.type, 'exit');
  });

  test('run on their own, with input and signals', async (t) => {
    const box = await sandbox(t);
    const echo = await box.commands.start('while read line; do echo "got $line"; done; exit 5', { tag: 'echo' });
    await echo.sendStdin('a\n');
    await echo.sendStdin(new TextEncoder().encode('b\n'));
    assert.ok((await box.commands.list()).some(({ pid, tag }) => pid === echo.pid && tag === 'echo'));
    await echo.closeStdin();
    const ended = await echo.wait();
    assert.deepEqual([ended.stdout, ended.exitCode], ['got a\ngot b\n', 5]);
    const sleeper = await box.commands.start(['sleep', '600']);
    await sleeper.kill('TERM');
    assert.equal((await box.commands.connect(sleeper.pid).wait()).exitCode, 143);
    const lines = await collect(box.logs());
    assert.ok(lines.some((line) => line.pid === echo.pid && line.data.includes('got a')));
  });
});

describe('sessions', () => {
  test('keep their state between commands', async (t) => {
    const box = await sandbox(t);
    await box.sessions.create('work', { cwd: '/tmp' });
    await box.sessions.run('work', 'NAME=kept');
    const done = await box.sessions.run('work', 'echo $NAME; pwd; exit_code() { return 3; }; exit_code', { timeoutS: 30 });
    assert.deepEqual([done.stdout, done.exitCode], ['kept\n/tmp\n', 3]);
    const id = await box.sessions.start('work', 'read line; echo "got $line"');
    await box.sessions.sendStdin('work', id, 'input\n');
    const followed = await collect(box.sessions.follow('work', id));
    assert.ok(followed.some((event) => event.type === 'stdout' && event.data.includes('got input')));
    assert.equal((await box.sessions.command('work', id)).exitCode, 0);
    assert.match((await box.sessions.logs('work', id)).stdout, /got input/);
    assert.equal((await box.sessions.get('work')).commands.length, 3);
    await box.sessions.delete('work');
    assert.deepEqual(await box.sessions.list(), []);
  });
});

describe('files', () => {
  test('are written, read, listed, moved, changed, searched and removed', async (t) => {
    const box = await sandbox(t);
    const entry = await box.files.write('work/a.txt', 'héllo\nworld\n', { mode: '0600' });
    assert.deepEqual([entry.kind, entry.mode, entry.size], ['file', '0600', 13]);
    assert.equal(await box.files.readText('work/a.txt'), 'héllo\nworld\n');
    const data = crypto.getRandomValues(new Uint8Array(50_000));
    await box.files.write('work/b.bin', data);
    assert.deepEqual(await box.files.read('work/b.bin'), data);
    await box.files.write('work/c.bin', new Blob([data]).stream());
    const copy = new Uint8Array(await new Response(await box.files.readStream('work/c.bin')).arrayBuffer());
    assert.deepEqual(copy, data);
    assert.deepEqual((await box.files.list('work')).map(({ name }) => name).sort(), ['a.txt', 'b.bin', 'c.bin']);
    await box.files.move('work/a.txt', 'work/d.txt');
    assert.equal((await box.files.stat('work/d.txt')).name, 'd.txt');
    const edited = await box.files.edit('work/d.txt', [{ find: 'world', replace: 'there' }]);
    assert.equal(edited.replacements, 1);
    assert.deepEqual((await box.files.grep('THERE', 'work', { ignoreCase: true })).items.map(({ line, text }) => [line, text]), [[2, 'there']]);
    assert.equal((await box.files.search('*.txt', 'work')).items.length, 1);
    assert.deepEqual([await box.files.exists('work/d.txt'), await box.files.exists('work/none')], [true, false]);
    assert.equal(new TextDecoder().decode(await box.files.read('work/d.txt', { offset: 7, length: 3 })), 'the');
    await box.files.mkdir('work/deep/er');
    await box.files.remove('work');
    await assert.rejects(box.files.stat('work'), { name: 'NotFoundError', code: 'file_not_found' });
  });

  test('travel as archives', async (t) => {
    const box = await sandbox(t);
    await box.files.write('one/file', 'content');
    const archive = await new Response(await box.files.downloadArchive('one')).arrayBuffer();
    assert.ok((await box.files.uploadArchive('/tmp/two', archive)).entries > 0);
    assert.match((await box.commands.run('cat $(find /tmp/two -type f)')).stdout, /^content$/);
  });

  test('are watched', async (t) => {
    const box = await sandbox(t);
    await box.files.mkdir('seen');
    const changes = box.files.watch('seen');
    const first = changes.next();
    // The watch begins with its answer, which the first change shows.
    const writing = until('a change is seen', async () => {
      await box.files.write(`seen/${word('f')}`, 'x');
      return Promise.race([first.then(() => true), new Promise<false>((resolve) => setTimeout(resolve, 100, false))]);
    });
    const change = (await first).value;
    await writing;
    assert.ok(change && ['create', 'write', 'rename', 'chmod'].includes(change.type) && change.name.length > 0, JSON.stringify(change));
    await changes.return(undefined);
  });
});

describe('code', () => {
  test('keeps its state and gives results, output and errors', async (t) => {
    const box = await sandbox(t, { template: INTERPRETER, memoryMib: 1024 });
    await box.code.run('x = 20');
    const ran = await box.code.run('print("hi")\nx + 22');
    assert.deepEqual([ran.text, ran.stdout, ran.error, ran.timedOut], ['42', 'hi\n', undefined, false]);
    const failed = await box.code.run('1 / 0');
    assert.deepEqual([failed.error?.name, failed.error?.value], ['ZeroDivisionError', 'division by zero']);
    const context = await box.code.contexts.create({ language: 'bash' });
    assert.equal((await box.code.run('echo $((6*7))', { context })).stdout, '42\n');
    assert.ok((await box.code.contexts.list()).some(({ id }) => id === context.id));
    await box.code.contexts.delete(context);
    const types = (await collect(box.code.stream('print(1)\n2'))).map(({ type }) => type);
    assert.deepEqual(types, ['start', 'stdout', 'result', 'end']);
    await box.code.contexts.restart(ran.context);
    assert.equal((await box.code.run('x')).error?.name, 'NameError');
  });
});

describe('terminals', () => {
  test('are opened, typed into, resized and closed', async (t) => {
    const own = new Atoll({ url, apiKey, webSocket: WebSocket });
    const box = await own.sandboxes.create('debian');
    t.after(() => box.delete());
    await using terminal = await box.terminals.open('main', { cols: 100, rows: 30 });
    terminal.resize(120, 40);
    terminal.send('stty size; echo $((6*7)); exit 9\n');
    let text = '';
    for await (const bytes of terminal) text += new TextDecoder().decode(bytes);
    assert.match(text, /40 120\r\n42\r\n/);
    assert.equal(terminal.exitCode, 9);
  });

  test('of a thread are the same shell', async (t) => {
    const box = await sandbox(t);
    const first = await box.terminals.open('conversation');
    first.send('NAME=kept\n');
    await first.close();
    const second = await box.terminals.open('conversation');
    assert.equal(second.id, first.id);
    second.send('echo "[$NAME]"\n');
    let text = '';
    for await (const bytes of second) {
      text += new TextDecoder().decode(bytes);
      if (text.includes('[kept]')) break;
    }
    assert.equal((await box.terminals.list()).length, 1);
    await second.close();
    await box.terminals.delete(second.info);
    assert.deepEqual(await box.terminals.list(), []);
  });
});

describe('git', () => {
  test('has typed answers', async (t) => {
    const box = await sandbox(t);
    const path = '/home/user/repo';
    await box.git.init(path, { branch: 'main' });
    await box.files.write(`${path}/a`, 'one\n');
    assert.deepEqual((await box.git.status(path)).files.map((file) => [file.path, file.worktree]), [['a', 'untracked']]);
    await box.git.add(['a'], path);
    const { hash } = await box.git.commit('First', path, { author: 'A', email: 'a@example.com' });
    await box.git.createBranch('side', path, { checkout: true });
    await box.files.write(`${path}/a`, 'two\n');
    assert.match((await box.git.diff(path)).output, /-one\n\+two/);
    await box.git.restore(['a'], path);
    await box.git.checkout('main', path);
    assert.deepEqual((await box.git.branches(path)).items.sort(), ['main', 'side']);
    await box.git.deleteBranch('side', path);
    await box.git.clone(`file://${path}`, '/home/user/copy');
    assert.equal((await box.git.log('/home/user/copy'))[0]!.hash, hash);
    assert.equal((await box.git.remotes('/home/user/copy'))[0]!.name, 'origin');
  });
});

describe('network', () => {
  test('a preview opens a port, and a closed preview does not', async (t) => {
    const box = await sandbox(t);
    await box.files.write('www/index.html', 'served');
    const server = await box.commands.start('exec python3 -u -m http.server 3000 -d www 2>&1');
    for await (const event of server.output()) if (event.type === 'stdout' && event.data.includes('Serving')) break;
    const preview = await box.previews.create(3000, { expiresS: 60 });
    const address = new URL(preview.path, url);
    assert.equal(await (await fetch(address)).text(), 'served');
    assert.deepEqual((await box.previews.list()).map(({ id }) => id), [preview.id]);
    await box.previews.delete(preview.id);
    assert.equal((await fetch(address)).status, 403);
  });

  test('refused connections are in the log', async (t) => {
    const box = await sandbox(t, { network: { mode: 'custom', allowDomains: ['allowed.test'] } });
    await box.commands.run('python3 -c "import socket; socket.create_connection((\'refused.test\', 443), 2)"');
    const record = await until('a record', async () => (await box.egress.log({ verdict: 'refused' }))[0]);
    assert.equal(record.verdict, 'refused');
    assert.equal((await box.egress.learnedPolicy()).mode, 'deny-all', 'nothing was allowed');
  });
});

describe('the server', () => {
  test('volumes outlive sandboxes', async (t) => {
    const name = word('volume');
    const volume = await client.volumes.create(name);
    t.after(() => client.volumes.delete(name));
    const box = await client.sandboxes.create('debian', { mounts: [{ volume: name, path: '/data' }] });
    await box.commands.run('echo kept > /data/file', { user: 'root' });
    await box.delete();
    assert.equal(new TextDecoder().decode(await client.volumes.read(name, '/file')), 'kept\n');
    await client.volumes.write(name, '/first', 'x');
    await client.volumes.move(name, '/first', '/other');
    assert.deepEqual((await client.volumes.entries(name, '/')).map((entry) => entry.name).sort(), ['file', 'other']);
    assert.ok((await client.volumes.list()).some(({ id }) => id === volume.id));
  });

  test('secrets, keys, providers, templates, version', async () => {
    const name = word('SECRET').replaceAll('-', '_').toUpperCase();
    assert.equal((await client.secrets.create(name, 'value')).name, name);
    await client.secrets.rotate(name, 'other');
    assert.ok((await client.secrets.list()).some((secret) => secret.name === name && !('value' in secret)));
    await client.secrets.delete(name);
    const admin = new Atoll({ url, apiKey: adminKey });
    const key = await admin.keys.create({ name: word('key') });
    assert.equal((await new Atoll({ url, apiKey: key.secret }).version()).api, 'v1');
    assert.ok((await admin.keys.list()).some(({ id }) => id === key.id));
    await admin.keys.delete(key.id);
    assert.ok((await client.providers.list()).some((provider) => provider.name === 'container' && provider.capabilities.includes('egress')));
    assert.equal((await client.templates.get('debian')).name, 'debian');
    await assert.rejects(client.templates.pull('not a name'), InvalidError);
    await assert.rejects(client.templates.get('none'), NotFoundError);
  });

  test('events are read and followed', async (t) => {
    const box = await sandbox(t);
    await box.pause();
    const past = await collect(client.events({ sandbox: box.id, follow: false }));
    assert.deepEqual(past.flatMap((event) => (event.kind === 'phase' ? [event.to] : [])), ['creating', 'running', 'pausing', 'paused']);
    const seen: SandboxEvent[] = [];
    void box.resume();
    for await (const event of client.events({ sandbox: box.id, after: past.at(-1)!.seq })) {
      seen.push(event);
      if (event.kind === 'phase' && event.to === 'running') break;
    }
    assert.ok(seen.length > 0 && seen.every(({ sandbox: id }) => id === box.id));
  });

  test('builds make templates', async (t) => {
    const template = word('built');
    const build = await client.builds.start(template, { dockerfile: 'FROM debian\nRUN echo made > /made\n' });
    const lines = await collect(client.builds.logs(build.id));
    const ended = await client.builds.get(build.id);
    assert.equal(ended.status, 'ready', JSON.stringify([ended.failure, lines.map(({ text }) => text)]));
    const box = await client.sandboxes.create(template);
    t.after(async () => {
      await box.delete();
      await client.templates.delete(template);
    });
    assert.equal((await box.commands.run('cat /made')).stdout, 'made\n');
  });

  test('a name is taken once', async (t) => {
    const name = word('taken');
    await sandbox(t, { name });
    await assert.rejects(client.sandboxes.create('debian', { name }), ConflictError);
  });
});
