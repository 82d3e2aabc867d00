// Names, events, errors, retries and time limits, against a server that answers what a test says.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import {
  Atoll,
  AtollError,
  AuthenticationError,
  ConflictError,
  ConnectionFailedError,
  ExhaustedError,
  ForbiddenError,
  InternalError,
  InvalidError,
  NotFoundError,
  RequestTimeoutError,
  UnavailableError,
  UnsupportedError,
} from 'atoll-sandbox';
import { camelFields, snakeFields } from '../src/case.js';
import { parseEvent, readEvents } from '../src/event_stream.js';
import { collect, repository } from './world.js';

type Handler = (request: IncomingMessage, response: ServerResponse, count: number) => void;

/** A server that answers with `handler`; a client of it, and the requests that came. */
async function serve(t: TestContext, handler: Handler, options = {}) {
  const seen: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    seen.push(request);
    request.resume();
    handler(request, response, seen.length);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => (server.closeAllConnections(), server.close()));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { client: new Atoll({ url, apiKey: 'k', ...options }), seen };
}

const json = (response: ServerResponse, status: number, body: unknown, headers = {}) =>
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));

const failing = (status: number, code: string, headers = {}): Handler => (_request, response) =>
  json(response, status, { code, message: 'no', hint: 'try', field: 'f', request_id: 'r1' }, headers);

test('names are changed at every depth, and keys of the user are kept', () => {
  const wire = { memory_mib: 1, env: { MY_NAME: 'a_b' }, mounts: [{ read_only: true }], network: { transforms: [{ inject_headers: { x_y: '1' } }] } };
  const camel = camelFields(wire);
  assert.deepEqual(camel, {
    memoryMib: 1,
    env: { MY_NAME: 'a_b' },
    mounts: [{ readOnly: true }],
    network: { transforms: [{ injectHeaders: { x_y: '1' } }] },
  });
  assert.deepEqual(snakeFields({ ...camel, left: undefined }), wire);
  assert.deepEqual(snakeFields(camelFields({ stdout_base64: 'x', null_field: null })), { stdout_base64: 'x', null_field: null });
});

test('events are read whatever the pieces they come in', async () => {
  const text = 'event: a\nid: 7\ndata: {"x":"é"}\n\n: keep-alive\n\nevent: b\ndata: 1\n\n';
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 3, bytes.length]) {
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let start = 0; start < bytes.length; start += size) controller.enqueue(bytes.slice(start, start + size));
        controller.close();
      },
    });
    assert.deepEqual(await collect(readEvents(body)), [
      { name: 'a', id: '7', data: { x: 'é' } },
      { name: 'b', id: undefined, data: 1 },
    ]);
  }
  assert.equal(parseEvent(': comment'), undefined);
});

test('every status has its class, with code, hint, field and request id', async (t) => {
  const classes: [number, typeof AtollError][] = [
    [400, InvalidError],
    [401, AuthenticationError],
    [403, ForbiddenError],
    [404, NotFoundError],
    [409, ConflictError],
    [421, ConflictError],
    [413, ExhaustedError],
    [429, ExhaustedError],
    [507, ExhaustedError],
    [500, InternalError],
    [501, UnsupportedError],
    [503, UnavailableError],
  ];
  for (const [status, kind] of classes) {
    const { client } = await serve(t, failing(status, 'some_code', { 'retry-after': '1' }), { maxRetries: 0 });
    await assert.rejects(client.version(), (error: AtollError) => {
      assert.ok(error instanceof kind, `${status}: ${error.name}`);
      assert.deepEqual(
        [error.status, error.code, error.message, error.hint, error.field, error.requestId, error.retryAfterS],
        [status, 'some_code', 'no', 'try', 'f', 'r1', 1],
      );
      assert.equal(String(error), `${kind.name}: no (some_code)\nhint: try\nrequest: r1`);
      return true;
    });
  }
});

test('an answer that is not from Atoll is said to be one', async (t) => {
  const { client } = await serve(t, (_request, response) => void response.writeHead(404).end('<html>'));
  await assert.rejects(client.version(), { name: 'NotFoundError', code: 'unknown', hint: /not from Atoll/ });
});

test('a read is sent again after 503, with the pause that the server asks for', async (t) => {
  const { client, seen } = await serve(t, (request, response, count) =>
    count === 1 ? failing(503, 'no_capacity', { 'retry-after': '0' })(request, response, count) : json(response, 200, { version: '1', api: 'v1' }),
  );
  assert.deepEqual(await client.version(), { version: '1', api: 'v1' });
  assert.equal(seen.length, 2);
});

test('a long pause, another failure and too many failures are not repeated', async (t) => {
  const cases: [Handler, number][] = [
    [failing(503, 'no_capacity', { 'retry-after': '60' }), 1],
    [failing(429, 'quota_exceeded', { 'retry-after': '0' }), 1],
    [failing(404, 'sandbox_not_found'), 1],
    [failing(502, 'bad_answer'), 3],
  ];
  for (const [handler, requests] of cases) {
    const { client, seen } = await serve(t, handler);
    await assert.rejects(client.version(), AtollError);
    assert.equal(seen.length, requests);
  }
});

test('a create is repeated with the same idempotency key, a command is not repeated', async (t) => {
  const { client, seen } = await serve(t, (request, response, count) => {
    if (count === 1) return void request.socket.destroy();
    if (request.url!.endsWith('/exec')) return void request.socket.destroy();
    return void json(response, 201, { id: 'box', phase: 'running' });
  });
  const sandbox = await client.sandboxes.create('debian', { memoryMib: 64 });
  assert.equal(sandbox.id, 'box');
  const keys = seen.map((request) => request.headers['idempotency-key']);
  assert.ok(keys.length === 2 && keys[0] && keys[0] === keys[1], String(keys));
  await assert.rejects(sandbox.commands.run('true', { timeoutS: 5 }), ConnectionFailedError);
  assert.equal(seen.length, 3);
});

test('a server that does not answer, and one that is not there', async (t) => {
  const { client } = await serve(t, () => {});
  await assert.rejects(client.version({ requestTimeoutS: 0.05 }), (error: AtollError) => {
    assert.ok(error instanceof RequestTimeoutError);
    assert.match(error.message, /GET \/v1\/version: no answer within 0.05 seconds/);
    return true;
  });
  const nowhere = new Atoll({ url: 'http://127.0.0.1:1', apiKey: 'k', maxRetries: 1 });
  await assert.rejects(nowhere.version(), (error: AtollError) => error instanceof ConnectionFailedError && /ECONNREFUSED|bad port/.test(error.message));
});

test('a signal ends a request and a stream', async (t) => {
  const { client } = await serve(t, (request, response) => {
    if (request.url!.startsWith('/v1/events')) response.writeHead(200, { 'content-type': 'text/event-stream' }).write('event: a\ndata: {}\n\n');
  });
  const stop = new AbortController();
  const call = client.version({ signal: stop.signal });
  stop.abort();
  await assert.rejects(call, { name: 'AbortError' });
  const later = new AbortController();
  const events = client.events({ signal: later.signal });
  await events.next();
  later.abort();
  await assert.rejects(events.next(), { name: 'AbortError' });
});

test('a key is needed, from the program or the environment', () => {
  const saved = process.env['ATOLL_API_KEY'];
  delete process.env['ATOLL_API_KEY'];
  try {
    assert.throws(() => new Atoll(), { name: 'AuthenticationError', hint: /atoll key create/ });
  } finally {
    process.env['ATOLL_API_KEY'] = saved;
  }
});

test('the generated files are those of the documents', () => {
  const folder = mkdtempSync(join(tmpdir(), 'atoll-generated-'));
  execFileSync(process.execPath, [join(repository, 'sdk/typescript/generate.mjs'), folder]);
  for (const name of ['api.ts', 'opaque_fields.ts', 'error_codes.ts']) {
    const committed = readFileSync(join(repository, 'sdk/typescript/src/generated', name), 'utf8');
    assert.ok(readFileSync(join(folder, name), 'utf8') === committed, `${name} is old: npm run generate in sdk/typescript`);
  }
});

test('an address without http:// or https:// is refused at once', () => {
  for (const url of ['localhost:7070', '127.0.0.1:7070', 'ftp://127.0.0.1']) {
    assert.throws(() => new Atoll({ url, apiKey: 'k' }), (error) => error instanceof InvalidError && /http:\/\//.test(error.hint ?? ''));
  }
});
