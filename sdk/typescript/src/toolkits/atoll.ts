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
    const open = async () => new AtollBackend(await sandboxes.create(templateOf(config), optionsOf(config)), config.thread !== undefined);
    super(new LazySandbox(config.provider ?? 'atoll', open, config.defaultTimeoutSeconds), config);
  }
}

/** The template `base` is one of the embedded engine; other providers have their own default. */
function templateOf(config: AtollToolkitConfig): string | undefined {
  if (config.image) return undefined;
  return config.template ?? (config.provider ? undefined : 'base');
}

function optionsOf(config: AtollToolkitConfig): CreateOptions {
  const idleS = config.idleTimeoutSeconds ?? DEFAULT_IDLE_SECONDS;
  // The sandbox of a thread is kept: it pauses, and the next call wakes it.
  const timers = config.thread ? { autoPauseS: idleS } : { autoStopS: idleS, autoDeleteS: 0 };
  return { image: config.image, provider: config.provider, thread: config.thread, ...timers, ...config.create };
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

class AtollBackend implements Backend {
  constructor(
    private readonly sandbox: Sandbox,
    private readonly keep: boolean,
  ) {}

  async exec(command: string, timeoutSeconds: number, env: Record<string, string>): Promise<SandboxResult> {
    const done = await this.sandbox.commands.run(`exec 2>&1\n${command}`, { timeoutS: timeoutSeconds, env });
    return done.timedOut ? { output: done.stdout, exitCode: 124, timedOut: true } : { output: done.stdout, exitCode: done.exitCode };
  }

  async write(path: string, data: Uint8Array): Promise<void> {
    await this.sandbox.files.write(path, data);
  }

  async read(path: string): Promise<Uint8Array | null> {
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
      // A provider that cannot pause keeps it running until its timer.
      if (!(error instanceof UnsupportedError)) throw error;
    }
  }

  isGone(error: unknown): boolean {
    return error instanceof NotFoundError && error.code === 'sandbox_not_found';
  }
}
