// A request of the page as a program would send it: curl, and code for the Python and TypeScript SDKs. A route that the SDKs
// have no method for becomes a plain HTTP request in that language.
import { shellWord } from './format';

export interface Request {
  method: string;
  path: string;
  body?: unknown;
}

/** A call of an SDK, independent of the language. Names are those of the API, in snake_case. */
interface SdkCall {
  /** The sandbox on whose object the call is made; without one it is made on the client. */
  sandbox?: string;
  /** Members and the method: `['commands', 'run']`. */
  members: string[];
  args?: unknown[];
  options?: Record<string, unknown>;
  /** The answer is an iterator. */
  isStream?: boolean;
}

type Body = Record<string, unknown>;

/** Fields whose keys belong to the user, so that they are never renamed. */
const USER_KEYS = new Set(['env', 'labels', 'inject_headers', 'settings', 'args', 'data']);
/** LIMIT: characters of a line of code; a longer call has one argument per line. */
const LINE_MOST = 88;

/** `{}` matches one part of the path. */
const ROUTES: [method: string, pattern: string, make: (parts: string[], body: Body, query: URLSearchParams) => SdkCall][] = [
  ['POST', '/v1/sandboxes', (_, { template, ...options }) => ({ members: ['sandboxes', 'create'], args: template ? [template] : [], options })],
  ['GET', '/v1/sandboxes', () => ({ members: ['sandboxes', 'list'], isStream: true })],
  ...['pause', 'resume', 'start', 'stop', 'restart', 'archive'].map(
    (verb) => ['POST', `/v1/sandboxes/{}/${verb}`, ([id]: string[], options: Body): SdkCall => ({ sandbox: id!, members: [verb], options })] as const,
  ).map(([method, pattern, make]): [string, string, typeof make] => [method, pattern, make]),
  ['DELETE', '/v1/sandboxes/{}', ([id]) => ({ sandbox: id!, members: ['delete'] })],
  ['PATCH', '/v1/sandboxes/{}', ([id], options) => ({ sandbox: id!, members: ['update'], options })],
  ['POST', '/v1/sandboxes/{}/hold', ([id], { for_s, ...options }) => ({ sandbox: id!, members: ['hold'], args: [for_s], options })],
  ['DELETE', '/v1/sandboxes/{}/hold', ([id]) => ({ sandbox: id!, members: ['release'] })],
  ['POST', '/v1/sandboxes/{}/extend', ([id], { seconds }) => ({ sandbox: id!, members: ['extend'], args: [seconds] })],
  ['POST', '/v1/sandboxes/{}/snapshots', ([id], { name, ...options }) => ({ sandbox: id!, members: ['snapshot'], args: name ? [name] : [], options })],
  ['POST', '/v1/sandboxes/{}/fork', ([id], { count, ...options }) => ({ sandbox: id!, members: ['fork'], args: [count ?? 1], options })],
  ['POST', '/v1/sandboxes/{}/rollback', ([id], { snapshot, ...options }) => ({ sandbox: id!, members: ['rollback'], args: [snapshot], options })],
  ['POST', '/v1/sandboxes/{}/exec', ([id], { command, argv, detach, ...options }) => ({ sandbox: id!, members: ['commands', detach ? 'start' : 'run'], args: [command ?? argv], options })],
  ['POST', '/v1/sandboxes/{}/code', ([id], { code, ...options }) => ({ sandbox: id!, members: ['code', 'run'], args: [code], options })],
  ['POST', '/v1/sandboxes/{}/previews', ([id], { port, ...options }) => ({ sandbox: id!, members: ['previews', 'create'], args: [port], options })],
  ['POST', '/v1/sandboxes/{}/terminals', ([id], options) => ({ sandbox: id!, members: ['terminals', 'open'], options })],
  ['GET', '/v1/sandboxes/{}/egress', ([id]) => ({ sandbox: id!, members: ['egress', 'log'] })],
  ['GET', '/v1/sandboxes/{}/egress/policy', ([id]) => ({ sandbox: id!, members: ['egress', 'learned_policy'] })],
  ['GET', '/v1/sandboxes/{}/metrics', ([id]) => ({ sandbox: id!, members: ['metrics'] })],
  ['GET', '/v1/sandboxes/{}/lineage', ([id]) => ({ sandbox: id!, members: ['lineage'] })],
  ['GET', '/v1/sandboxes/{}/logs', ([id], _, query) => ({ sandbox: id!, members: ['logs'], options: query.get('follow') ? { follow: true } : {}, isStream: true })],
  ['GET', '/v1/sandboxes/{}/files', ([id], _, query) => ({ sandbox: id!, members: ['files', 'read'], args: [query.get('path')] })],
  ['GET', '/v1/events', (_, __, query) => ({ members: ['events'], options: { sandbox: query.get('sandbox'), after: Number(query.get('after') ?? 0), follow: false }, isStream: true })],
  ['GET', '/v1/threads', () => ({ members: ['threads', 'list'], isStream: true })],
  ['GET', '/v1/threads/{}', (args) => ({ members: ['threads', 'get'], args })],
  ['DELETE', '/v1/threads/{}', (args) => ({ members: ['threads', 'end'], args })],
  ['POST', '/v1/keys', (_, options) => ({ members: ['keys', 'create'], options })],
  ['POST', '/v1/secrets', (_, { name, value }) => ({ members: ['secrets', 'create'], args: [name, value] })],
  ['POST', '/v1/volumes', (_, { name, ...options }) => ({ members: ['volumes', 'create'], args: [name], options })],
  ['POST', '/v1/templates/pull', (_, { image, ...options }) => ({ members: ['templates', 'pull'], args: [image], options })],
  ['POST', '/v1/builds', (_, { template, ...options }) => ({ members: ['builds', 'start'], args: [template], options })],
  ['PUT', '/v1/providers/{}/settings', ([name], settings) => ({ members: ['providers', 'set_settings'], args: [name, settings] })],
  ['POST', '/v1/providers/{}/test', (args) => ({ members: ['providers', 'test'], args })],
];

/** Methods whose leading argument may be left out, which TypeScript has to write down before options. */
const LEADING = new Set(['sandboxes.create', 'snapshot']);

/** Snippets that name the same method differently in the two languages. */
const SIGNAL = /^\/v1\/sandboxes\/([^/]+)\/processes\/(\d+)\/signal$/;

function callOf(request: Request): SdkCall | undefined {
  const [path, query = ''] = request.path.split('?') as [string, string?];
  const parts = path.split('/');
  for (const [method, pattern, make] of ROUTES) {
    const wanted = pattern.split('/');
    if (method !== request.method || wanted.length !== parts.length) continue;
    if (!wanted.every((part, index) => part === '{}' || part === parts[index])) continue;
    const named = parts.filter((_, index) => wanted[index] === '{}').map(decodeURIComponent);
    return make(named, (request.body ?? {}) as Body, new URLSearchParams(query));
  }
  return undefined;
}

export function curl({ method, path, body }: Request): string {
  const words = ['curl', '-X', method, shellWord(location.origin + path), '-H', '"Authorization: Bearer $ATOLL_API_KEY"'];
  if (body !== undefined) words.push('--json', shellWord(JSON.stringify(body)));
  return words.join(' ');
}

const isDefaultServer = () => location.origin === 'http://127.0.0.1:7070';

export function python(request: Request): string {
  const signal = SIGNAL.exec(request.path);
  const call = callOf(request);
  if (!signal && !call) return pythonRequest(request);
  const lines = ['from atoll_sandbox import Atoll', '', `client = Atoll(${isDefaultServer() ? '' : `url=${pythonValue(location.origin)}`})`];
  const sandbox = signal ? decodeURIComponent(signal[1]!) : call?.sandbox;
  if (sandbox) lines.push(`sandbox = client.sandboxes.get(${pythonValue(sandbox)})`);
  if (signal) {
    lines.push(`sandbox.commands.connect(${signal[2]}).kill(${pythonValue((request.body as Body)['signal'])})`);
  } else if (call) {
    const options = Object.entries(call.options ?? {}).map(([name, value]) => `${name}=${pythonValue(value)}`);
    const text = joined([call.sandbox ? 'sandbox' : 'client', ...call.members].join('.'), [...(call.args ?? []).map(pythonValue), ...options], '    ');
    lines.push(call.isStream ? `for item in ${text}:\n    print(item)` : text);
  }
  return lines.join('\n');
}

export function typescript(request: Request): string {
  const signal = SIGNAL.exec(request.path);
  const call = callOf(request);
  if (!signal && !call) return typescriptRequest(request);
  const lines = ['import { Atoll } from "atoll-sandbox";', '', `const client = new Atoll(${isDefaultServer() ? '' : `{ url: ${JSON.stringify(location.origin)} }`});`];
  const sandbox = signal ? decodeURIComponent(signal[1]!) : call?.sandbox;
  if (sandbox) lines.push(`const sandbox = await client.sandboxes.get(${JSON.stringify(sandbox)});`);
  if (signal) {
    lines.push(`await sandbox.commands.get(${signal[2]}).kill(${JSON.stringify((request.body as Body)['signal'])});`);
  } else if (call) {
    // Objects among the leading arguments are documents of the API, whose names are not changed.
    const args = (call.args ?? []).map((value) => typescriptValue(value, false));
    if (Object.keys(call.options ?? {}).length) {
      if (LEADING.has(call.members.join('.')) && !args.length) args.push('undefined');
      args.push(typescriptValue(call.options));
    }
    const text = joined([call.sandbox ? 'sandbox' : 'client', ...call.members.map(camel)].join('.'), args, '  ');
    lines.push(call.isStream ? `for await (const item of ${text}) console.log(item);` : `await ${text};`);
  }
  return lines.join('\n');
}

function joined(callee: string, args: string[], indent: string): string {
  const line = `${callee}(${args.join(', ')})`;
  if (line.length <= LINE_MOST || args.length < 2) return line;
  return `${callee}(\n${args.map((arg) => `${indent}${arg},\n`).join('')})`;
}

function pythonRequest({ method, path, body }: Request): string {
  const args = [pythonValue(method), pythonValue(location.origin + path), `headers={"authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}`];
  if (body !== undefined) args.push(`json=${pythonValue(body)}`);
  return `import os\n\nimport httpx\n\nanswer = ${joined('httpx.request', args, '    ')}\nanswer.raise_for_status()\nprint(answer.text)`;
}

function typescriptRequest({ method, path, body }: Request): string {
  const headers = ['authorization: `Bearer ${process.env.ATOLL_API_KEY}`', ...(body === undefined ? [] : ['"content-type": "application/json"'])];
  const options = [`  method: ${JSON.stringify(method)},`, `  headers: { ${headers.join(', ')} },`];
  if (body !== undefined) options.push(`  body: JSON.stringify(${typescriptValue(body, false)}),`);
  return `const answer = await fetch(${JSON.stringify(location.origin + path)}, {\n${options.join('\n')}\n});\nif (!answer.ok) throw new Error(await answer.text());\nconsole.log(await answer.text());`;
}

function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(', ')}]`;
  if (typeof value === 'object') return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonValue(one)}`).join(', ')}}`;
  return JSON.stringify(value);
}

const camel = (name: string) => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** A value as TypeScript writes it; `renamed`: names of fields in camelCase, as the SDK has them. */
function typescriptValue(value: unknown, renamed = true): string {
  if (Array.isArray(value)) return `[${value.map((one) => typescriptValue(one, renamed)).join(', ')}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value ?? null);
  const fields = Object.entries(value).filter(([, one]) => one !== undefined).map(([name, one]) => {
    const shown = renamed ? camel(name) : name;
    return `${/^[A-Za-z_$][\w$]*$/.test(shown) ? shown : JSON.stringify(shown)}: ${typescriptValue(one, renamed && !USER_KEYS.has(name))}`;
  });
  return fields.length ? `{ ${fields.join(', ')} }` : '{}';
}
