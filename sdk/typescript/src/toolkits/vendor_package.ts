/** Packages of vendors, which are installed only by those who use them. Found and loaded without an import at the top level. */

interface Require {
  (name: string): unknown;
  resolve(name: string): string;
}

/**
 * Loads the first of `names` that is installed beside this package or in the program's folder. Throws at once, with a message that
 * begins `LABEL is required`, if there is none.
 */
export function findPackage(names: readonly string[], label: string, install: string): () => unknown {
  const here = globalThis as {
    process?: { getBuiltinModule?(name: string): { createRequire(from: string | URL): Require } | undefined; cwd?(): string };
  };
  const modules = here.process?.getBuiltinModule?.('node:module');
  const places = [import.meta.url, `${here.process?.cwd?.() ?? '.'}/package.json`];
  for (const place of modules ? places : []) {
    const require = modules!.createRequire(place);
    for (const name of names) {
      try {
        require.resolve(name);
      } catch {
        continue;
      }
      return () => require(name);
    }
  }
  throw new Error(`${label} is required: npm install ${install}`);
}

/** Quotes a text for a shell. */
export function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** LIMIT: what a vendor's API may take longer than the command itself. */
export const GRACE_SECONDS = 15;

/**
 * A command that ends itself at its time limit with code 124, so that its output is kept. A vendor's own limit loses the output.
 * Both streams become one.
 */
export function limitedCommand(command: string, timeoutSeconds: number): string {
  const shell = '$(command -v bash || echo sh)';
  return `timeout -k 2 ${timeoutSeconds} ${shell} -c ${quoted(command)} 2>&1`;
}

/** The result of a limited command. */
export function limitedResult(output: string, exitCode: number, tookMs: number, timeoutSeconds: number) {
  // `timeout` says 124, or 137 if the command did not end when asked. The time tells these from codes of the command itself.
  const timedOut = (exitCode === 124 || exitCode === 137) && tookMs >= timeoutSeconds * 1_000;
  return timedOut ? { output, exitCode: 124, timedOut } : { output, exitCode };
}
