/** Sandboxes of Atoll, at any provider that the server has. */
import { NotFoundError, UnsupportedError } from '../errors.js';
import { type CreateOptions, type Sandbox, Sandboxes } from '../sandbox.js';
import { connect, environment } from '../settings.js';
import { type Backend, LazySandbox, type SandboxResult } from './cloud_sandbox.js';
import { DEFAULT_IDLE_SECONDS, MissingApiKeyError, SandboxToolkit, type ToolkitConfig } from './toolkit.js';

export interface AtollToolkitConfig extends ToolkitConfig {
  /** A provider of the server, such as `docker`; the tools have its name. Default: the server's, and tools named `atoll`. */
  provider?: string;
  /** The sandbox of this conversation: found again by the next toolkit. `close()` pauses it instead of deleting it. */
  thread?: string;
  /** An image of a registry, instead of a template. */
  image?: string;
  /** More options of the create request: limits, environment, network policy. */
  create?: CreateOptions;
}

export class AtollSandboxToolkit extends SandboxToolkit {
  constructor(config: AtollToolkitConfig = {}) {
    const apiKey = config.apiKey ?? environment('ATOLL_API_KEY');
    if (!apiKey) throw new MissingApiKeyError('pass apiKey or set ATOLL_API_KEY; `atoll key create` makes a key');
    const sandboxes = new Sandboxes(connect({ apiKey, url: config.baseURL }));
    const open = () => create(sandboxes, config);
    super(new LazySandbox(config.provider ?? 'atoll', open, config.defaultTimeoutSeconds), config);
  }
}

/** The template `base` is one of the embedded engine; other providers have their own default. */
function templateOf(config: AtollToolkitConfig): string | undefined {
  if (config.image) return undefined;
  return config.template ?? (config.provider ? undefined : 'base');
}

/** Creates a sandbox that ends by itself when it is not used any more, also if this program does not end it. */
async function create(sandboxes: Sandboxes, config: AtollToolkitConfig): Promise<AtollBackend> {
  const fixed = { image: config.image, provider: config.provider, thread: config.thread };
  const [ending, otherEnding] = endings(config);
  const make = (timers: CreateOptions) => sandboxes.create(templateOf(config), { ...fixed, ...timers, ...config.create });
  const keep = config.thread !== undefined;
  try {
    return new AtollBackend(await make(ending), keep);
  } catch (error) {
    if (!(error instanceof UnsupportedError)) throw error;
    return new AtollBackend(await make(otherEnding), keep, otherEnding.timeoutS ?? undefined);
  }
}

/** What ends an idle sandbox, and what ends it at a provider that cannot do that: one cannot pause, another loses files in a stop. */
function endings(config: AtollToolkitConfig): [CreateOptions, CreateOptions] {
  const idleS = config.idleTimeoutSeconds ?? DEFAULT_IDLE_SECONDS;
  // The sandbox of a thread is kept: it pauses or stops, and the next call wakes it.
  if (config.thread) return [{ autoPauseS: idleS }, { autoStopS: idleS }];
  return [{ autoStopS: idleS, autoDeleteS: 0 }, { timeoutS: idleS, onTimeout: 'delete' }];
}

/** Toolkits of providers by name. They are `AtollSandboxToolkit` with `provider`. */
export class DockerSandboxToolkit extends AtollSandboxToolkit {
  constructor(config: Omit<AtollToolkitConfig, 'provider'> = {}) {
    super({ ...config, provider: 'docker' });
  }
}

export class LocalSandboxToolkit extends AtollSandboxToolkit {
  constructor(config: Omit<AtollToolkitConfig, 'provider'> = {}) {
    super({ ...config, provider: 'local' });
  }
}

export class AgentBaySandboxToolkit extends AtollSandboxToolkit {
  constructor(config: Omit<AtollToolkitConfig, 'provider'> = {}) {
    super({ ...config, provider: 'agentbay' });
  }
}

/** LIMIT: a lifetime is renewed at most this often. */
const RENEW_EVERY_MS = 30_000;
/** LIMIT: what a lifetime is longer than the command that it has to cover. */
const GRACE_SECONDS = 15;

class AtollBackend implements Backend {
  private renewedAt = Date.now();

  constructor(
    private readonly sandbox: Sandbox,
    private readonly keep: boolean,
    /** Seconds from every use to its end, where no idle timer ends it. */
    private readonly lifetimeS?: number,
  ) {}

  get vendor(): Sandbox {
    return this.sandbox;
  }

  async exec(command: string, timeoutSeconds: number, env: Record<string, string>): Promise<SandboxResult> {
    await this.renew(timeoutSeconds);
    const done = await this.sandbox.commands.run(`exec 2>&1\n${command}`, { timeoutS: timeoutSeconds, env });
    return done.timedOut ? { output: done.stdout, exitCode: 124, timedOut: true } : { output: done.stdout, exitCode: done.exitCode };
  }

  async write(path: string, data: Uint8Array): Promise<void> {
    await this.renew(0);
    await this.sandbox.files.write(path, data);
  }

  async read(path: string): Promise<Uint8Array | null> {
    await this.renew(0);
    try {
      return await this.sandbox.files.read(path);
    } catch (error) {
      if (error instanceof NotFoundError && error.code === 'file_not_found') return null;
      throw error;
    }
  }

  async close(): Promise<void> {
    if (!this.keep) return this.sandbox[Symbol.asyncDispose]();
    try {
      await this.sandbox.pause();
    } catch (error) {
      if (!(error instanceof UnsupportedError)) throw error;
      await this.sandbox.stop();
    }
  }

  isGone(error: unknown): boolean {
    return error instanceof NotFoundError && error.code === 'sandbox_not_found';
  }

  private async renew(seconds: number): Promise<void> {
    if (this.lifetimeS === undefined) return;
    const now = Date.now();
    const needed = seconds + GRACE_SECONDS >= this.lifetimeS;
    if (!needed && now - this.renewedAt < RENEW_EVERY_MS) return;
    this.renewedAt = now;
    await this.sandbox.update({ timeoutS: Math.max(this.lifetimeS, seconds) + GRACE_SECONDS });
  }
}
