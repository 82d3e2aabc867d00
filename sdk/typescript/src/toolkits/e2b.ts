/** Sandboxes of E2B, or of a server with E2B's API, by the vendor's own package. */
import { environment } from '../settings.js';
import { type Backend, LazySandbox, type SandboxResult } from './cloud_sandbox.js';
import { DEFAULT_IDLE_SECONDS, MissingApiKeyError, SandboxToolkit, type ToolkitConfig } from './toolkit.js';
import { findPackage, GRACE_SECONDS, limitedCommand, limitedResult } from './vendor_package.js';

export interface E2BToolkitConfig extends ToolkitConfig {
  /** The package, for programs that are bundled: `import * as e2b from 'e2b'`. */
  sdk?: unknown;
}

/** The part of the package that is used; `e2b` and `@e2b/sdk` have it. */
interface E2BSandbox {
  commands: { run(command: string, options: object): Promise<{ stdout: string; exitCode: number }> };
  files: {
    write(path: string, data: ArrayBuffer): Promise<unknown>;
    read(path: string, options: { format: 'bytes' }): Promise<Uint8Array>;
  };
  /** Where the package reaches the sandbox. */
  envdApiUrl?: string;
  setTimeout(ms: number): Promise<void>;
  kill(): Promise<unknown>;
}

interface E2BPackage {
  Sandbox: { create(template: string, options: object): Promise<E2BSandbox> };
}

export class E2BSandboxToolkit extends SandboxToolkit {
  constructor(config: E2BToolkitConfig = {}) {
    const apiKey = config.apiKey ?? environment('E2B_API_KEY');
    if (!apiKey) throw new MissingApiKeyError('pass apiKey or set E2B_API_KEY');
    const load = config.sdk
      ? () => config.sdk
      : findPackage(['e2b', '@e2b/sdk', '@e2b/code-interpreter'], '@e2b/sdk', 'e2b');
    const idleS = config.idleTimeoutSeconds ?? DEFAULT_IDLE_SECONDS;
    const open = async () => {
      const { Sandbox } = load() as E2BPackage;
      const options = { apiKey, timeoutMs: idleS * 1_000, ...addresses(config.baseURL) };
      const sandbox = await Sandbox.create(config.template ?? 'base', options);
      return new E2BBackend(sandbox, idleS, config.baseURL ?? environment('E2B_API_URL') ?? '');
    };
    super(new LazySandbox('e2b', open, config.defaultTimeoutSeconds), config);
  }
}

/** Atoll has E2B's API below `/e2b`, and the sandboxes at its root. Other addresses are those of an API alone. */
function addresses(baseURL: string | undefined): { apiUrl?: string; sandboxUrl?: string } {
  if (!baseURL) return {};
  const apiUrl = baseURL.replace(/\/+$/, '');
  return apiUrl.endsWith('/e2b') ? { apiUrl, sandboxUrl: apiUrl.slice(0, -'/e2b'.length) } : { apiUrl };
}

/** LIMIT: the lifetime is renewed at most this often. */
const RENEW_EVERY_MS = 30_000;

class E2BBackend implements Backend {
  private renewedAt = Date.now();

  constructor(
    private readonly sandbox: E2BSandbox,
    private readonly idleS: number,
    private readonly apiUrl: string,
  ) {}

  get vendor(): E2BSandbox {
    return this.sandbox;
  }

  async exec(command: string, timeoutSeconds: number, env: Record<string, string>): Promise<SandboxResult> {
    await this.renew(timeoutSeconds);
    const began = Date.now();
    const limits = { timeoutMs: (timeoutSeconds + GRACE_SECONDS) * 1_000, envs: env };
    const run = () => this.sandbox.commands.run(limitedCommand(command, timeoutSeconds), limits).catch(exitOf);
    const done = await this.reach(run);
    return limitedResult(done.stdout, done.exitCode, Date.now() - began, timeoutSeconds);
  }

  async write(path: string, data: Uint8Array): Promise<void> {
    await this.renew(0);
    await this.reach(() => this.sandbox.files.write(path, data.slice().buffer));
  }

  async read(path: string): Promise<Uint8Array | null> {
    await this.renew(0);
    try {
      return await this.reach(() => this.sandbox.files.read(path, { format: 'bytes' }));
    } catch (error) {
      if (isNotFound(error) && !this.isGone(error)) return null;
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.sandbox.kill();
  }

  isGone(error: unknown): boolean {
    return isNotFound(error) && ((error as Error).name === 'SandboxNotFoundError' || /sandbox/i.test((error as Error).message));
  }

  /** Calls the sandbox. The package reaches it over TLS unless it takes an address for it; a server without TLS cannot answer that. */
  private async reach<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      const isTlsToPlain = this.apiUrl.startsWith('http:') && this.sandbox.envdApiUrl?.startsWith('https:');
      if (!isTlsToPlain || !isConnectionFailure(error)) throw error;
      const text = `the package reaches sandboxes only over TLS, and ${this.apiUrl} is plain HTTP: run \`atoll tls init\` once on the server, then set what \`atoll env e2b --tls\` prints`;
      throw new Error(text, { cause: error });
    }
  }

  /** E2B ends a sandbox at a fixed time; every use moves that time. */
  private async renew(seconds: number): Promise<void> {
    const now = Date.now();
    const needed = seconds + GRACE_SECONDS >= this.idleS;
    if (!needed && now - this.renewedAt < RENEW_EVERY_MS) return;
    this.renewedAt = now;
    await this.sandbox.setTimeout((Math.max(this.idleS, seconds) + GRACE_SECONDS) * 1_000);
  }
}

/** Whether there was no answer at all; the package keeps the cause of some failures and drops that of others. */
function isConnectionFailure(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) if (/fetch failed|\bSSL\b|EPROTO/.test(at.message)) return true;
  return false;
}

function isNotFound(error: unknown): boolean {
  return error instanceof Error && ['NotFoundError', 'FileNotFoundError', 'SandboxNotFoundError'].includes(error.name);
}

/** The package throws if the code is not 0; the error has the result. */
function exitOf(error: unknown): { stdout: string; exitCode: number } {
  const known = error as { exitCode?: unknown; stdout?: unknown };
  if (typeof known?.exitCode === 'number' && typeof known.stdout === 'string') return { stdout: known.stdout, exitCode: known.exitCode };
  throw error;
}
