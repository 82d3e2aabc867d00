'use strict';
// Between the host and one JavaScript context: JSON lines in, JSON lines out. Runs inside the sandbox.
// In:  {"op": "execute", "id", "code", "env"} · {"op": "cancel", "id"}; an interrupt is SIGINT, since a busy program reads nothing.
// Out: {"type": "ready"} · {"type": "missing", "tool"} · and for an id: started, stdout, stderr, result, error, end

const repl = require('node:repl');
const util = require('node:util');
const vm = require('node:vm');
const { Console } = require('node:console');
const { PassThrough, Writable } = require('node:stream');

const write = process.stdout.write.bind(process.stdout);
const tell = (fields) => write(JSON.stringify(fields) + '\n');
let running = null;

const typescript = options.language === 'typescript';
// Newer ones take the types away themselves; others have a program for it.
const strip = (() => {
  const own = require('node:module').stripTypeScriptTypes;
  if (own) return (code) => own(code, { mode: 'transform' });
  const { spawnSync } = require('node:child_process');
  const esbuild = (args, input) => spawnSync('esbuild', args, { input, encoding: 'utf8', maxBuffer: 1 << 28 });
  if (!typescript || esbuild(['--version']).status !== 0) return null;
  return (code) => {
    const done = esbuild(['--loader=ts', '--log-level=error', '--target=es2022'], code);
    if (done.status === 0) return done.stdout;
    const words = (done.stderr || String(done.error)).trim();
    throw new SyntaxError((/ERROR\]? ?(.*)/.exec(words) || [, words])[1]);
  };
})();
if (typescript && !strip) {
  tell({ type: 'missing', tool: 'typescript' });
  process.exit(3);
}

const stream = (type) => (chunk, encoding, done) => {
  const after = typeof encoding === 'function' ? encoding : done;
  tell({ type, id: running, text: typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString() });
  if (after) after();
  return true;
};
process.stdout.write = stream('stdout');
process.stderr.write = stream('stderr');

const sink = (type) => new Writable({ decodeStrings: false, write: stream(type) });
const session = repl.start({
  prompt: '',
  input: new PassThrough(),
  output: new Writable({ write: (_chunk, _encoding, done) => done() }),
  terminal: false,
  useGlobal: false,
});
session.context.console = new Console(sink('stdout'), sink('stderr'));
session.context.display = (data) => tell({ type: 'result', id: running, main: false, data });
let interrupt = null;
// While plain code runs the engine takes the signal itself; here it ends a wait, or nothing.
process.on('SIGINT', () => interrupt && interrupt());

const failed = (id, error) => {
  const isError = util.types.isNativeError(error) || (error && typeof error.stack === 'string');
  const name = isError ? String(error.name) : 'Error';
  const value = isError ? String(error.message) : util.inspect(error);
  tell({ type: 'error', id, name, value, traceback: isError ? String(error.stack) : value });
};
process.on('uncaughtException', (error) => failed(running, error));
// Code that awaits is evaluated by the session, which tells of a rejection its domain instead of its caller.
let rejected = null;
const evaluateAwaiting = (code, filename, end) => {
  const done = (error, value) => {
    rejected = null;
    end(error, value);
  };
  rejected = done;
  session.eval(code + '\n', session.context, filename, done);
};
if (session._domain) {
  session._domain.removeAllListeners('error');
  session._domain.on('error', (error) => (rejected ? rejected(error) : failed(running, error)));
}
process.on('unhandledRejection', (error) => failed(running, error));

const shown = (value) => ({ 'text/plain': typeof value === 'string' ? value : util.inspect(value) });

// An object is an expression, not a block; code that awaits is for the session, which knows how at the top level.
const compiled = (code, filename) => {
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
    try {
      return new vm.Script('(' + code.trim() + ')', { filename });
    } catch {}
  }
  return new vm.Script(code, { filename });
};

const evaluate = (code, filename, end) => {
  let script;
  try {
    script = compiled(code, filename);
    // `await (x)` is the call of a function in a script: this makes it a mistake where nothing asynchronous is around it.
    if (/\bawait\s*\(/.test(code)) compiled(code.replace(/\bawait\s*\(/g, 'await 0||('), filename);
  } catch (error) {
    if (!/\bawait\b/.test(code)) return end(error);
    interrupt = () => end(new Error('interrupted'));
    return evaluateAwaiting(code, filename, end);
  }
  let value;
  try {
    value = script.runInContext(session.context, { breakOnSigint: true });
  } catch (error) {
    return end(error);
  }
  return end(null, value);
};

// Deno's way to name a package of npm is understood, as far as the package is installed.
const specifier = (from) => from.replace(/^npm:\/?(@[^/]+\/[^/@]+|[^/@]+)(?:@[^/]*)?/, '$1');
const imported = ({ from, how, attributes }, filename) => new Promise((done, fail) => {
  const more = attributes ? `, { ${how}: ${attributes} }` : '';
  const code = `await import(${JSON.stringify(specifier(from))}${more})`;
  evaluateAwaiting(code, filename, (error, module) => (error ? fail(error.err || error) : done(module)));
});

// Loads what a cell imports; its names are there for the cells that follow, too.
const bind = async (imports, filename) => {
  for (const one of imports) {
    const module = await imported(one, filename).catch((error) => {
      const missing = error && error.code === 'ERR_MODULE_NOT_FOUND' && /^[^./]/.test(specifier(one.from));
      if (missing) error.message += ` (npm install ${specifier(one.from)})`;
      throw error;
    });
    for (const [name, here] of one.names) {
      // A type has no value; which names are types only a compiler knows.
      if (name !== '*' && !(name in module) && !typescript)
        throw new SyntaxError(`The requested module '${one.from}' does not provide an export named '${name}'`);
      session.context[here] = name === '*' ? module : module[name];
    }
  }
};

let count = 0;
const execute = (request) => new Promise((done) => {
  running = request.id;
  count += 1;
  tell({ type: 'started', id: request.id, count });
  const before = {};
  for (const [name, value] of Object.entries(request.env || {})) {
    before[name] = process.env[name];
    process.env[name] = value;
  }
  let ended = false;
  const end = (error, value) => {
    if (ended) return;
    ended = true;
    interrupt = null;
    if (error) failed(request.id, error.err || error);
    else if (value !== undefined) tell({ type: 'result', id: request.id, main: true, data: shown(value) });
    for (const [name, old] of Object.entries(before)) {
      if (old === undefined) delete process.env[name];
      else process.env[name] = old;
    }
    tell({ type: 'end', id: request.id });
    done();
  };
  try {
    const filename = 'cell-' + count;
    const { imports, rest } = takeImports(request.code, typescript);
    const code = typescript ? strip(rest) : rest;
    if (!imports.length) return evaluate(code, filename, end);
    interrupt = () => end(new Error('interrupted'));
    const go = () => {
      interrupt = null;
      if (!ended) evaluate(code, filename, end);
    };
    bind(imports, filename).then(go).catch(end);
  } catch (error) {
    end(error);
  }
});

const waiting = [];
let busy = false;
const work = async () => {
  if (busy) return;
  busy = true;
  while (waiting.length) await execute(waiting.shift());
  busy = false;
};

const take = (line) => {
  const request = JSON.parse(line);
  if (request.op === 'execute') {
    waiting.push(request);
    work();
    return;
  }
  const at = waiting.findIndex((one) => one.id === request.id);
  if (at >= 0) {
    waiting.splice(at, 1);
    tell({ type: 'error', id: request.id, name: 'Interrupted', value: '', traceback: '' });
    tell({ type: 'end', id: request.id });
  }
};

let held = rest;
const feed = (text) => {
  held += text;
  for (let at = held.indexOf('\n'); at >= 0; at = held.indexOf('\n')) {
    const line = held.slice(0, at);
    held = held.slice(at + 1);
    take(line);
  }
};
process.stdin.on('data', feed);
process.stdin.on('end', () => process.exit(0));
tell({ type: 'ready', version: process.versions.node });
feed('');
