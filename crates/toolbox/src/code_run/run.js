'use strict';
// Runs code once as the main program. `told` is what the host said, `require` is node's own.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const Module = require('node:module');
const { pathToFileURL } = require('node:url');

const plain = (code) => {
  if (Module.stripTypeScriptTypes) return Module.stripTypeScriptTypes(code, { mode: 'transform' });
  const done = spawnSync('esbuild', ['--loader=ts', '--log-level=error'], { input: code, maxBuffer: 1 << 28 });
  if (done.status === 0) return done.stdout.toString();
  if (done.status !== null) {
    process.stderr.write(done.stderr);
    process.exit(1);
  }
  for (const from of [process.cwd(), '/usr/share/nodejs', '/usr/local/lib/node_modules', '/usr/lib/node_modules']) {
    let typescript;
    try {
      typescript = require(require.resolve('typescript', { paths: [from, path.dirname(from)] }));
    } catch {
      continue;
    }
    const { ESNext, ES2022 } = typescript.ModuleKind;
    const compilerOptions = { module: ESNext || ES2022, target: typescript.ScriptTarget.ES2022 };
    return typescript.transpileModule(code, { compilerOptions }).outputText;
  }
  process.stdout.write(`\x1e${told.word}{"missing":"typescript"}\x1e${told.word}`);
  return process.exit(3);
};

const isModule = (error) =>
  error instanceof SyntaxError && /import statement|Unexpected token 'export'|await is only valid|import\.meta/.test(error.message);

// Code with imports must be a file, so that what it imports is found from where it runs.
const runAsModule = (code) => {
  const name = `.atoll-${process.pid}-${Date.now()}.mjs`;
  let file = path.join(process.cwd(), name);
  try {
    fs.writeFileSync(file, code);
  } catch {
    file = path.join(os.tmpdir(), name);
    fs.writeFileSync(file, code);
  }
  const gone = () => fs.rmSync(file, { force: true });
  process.on('exit', gone);
  return import(pathToFileURL(file).href).finally(gone);
};

const failed = (error) => {
  console.error(error);
  process.exit(1);
};

const main = () => {
  const filename = path.join(process.cwd(), '[eval]');
  process.argv = [process.execPath, filename, ...told.argv];
  const code = told.language === 'typescript' ? plain(told.code) : told.code;
  const module = new Module(filename, null);
  module.filename = filename;
  module.paths = Module._nodeModulePaths(process.cwd());
  try {
    // Compiled apart first: only code that is no script is tried as a module.
    new (require('node:vm').Script)(Module.wrap(code), { filename });
  } catch (error) {
    if (isModule(error)) return runAsModule(code).catch(failed);
    return failed(error);
  }
  return module._compile(code, filename);
};

main();
