/** Sandboxes of Daytona, or of a server with Daytona's API, by the vendor's own package. */
import { environment } from '../settings.js';
import { type Backend, LazySandbox, type SandboxResult } from './cloud_sandbox.js';
import { DEFAULT_IDLE_SECONDS, MissingApiKeyError, SandboxToolkit, type ToolkitConfig } from './toolkit.js';
import { findPackage, GRACE_SECONDS, limitedCommand, limitedResult } from './vendor_package.js';

export interface DaytonaToolkitConfig extends ToolkitConfig {
  /** The region. */
  target?: string;
  /** The package, for programs that are bundled: `import * as daytona from '@daytonaio/sdk'`. */
  sdk?: unknown;
}

/** The part of the package that is used. */
interface DaytonaSandbox {
  process: {
    executeCommand(command: string, cwd?: string, env?: Record<string, string>, timeout?: number): Promise<{ exitCode: number; result: string }>;
  };
  fs: {
    uploadFile(data: Uint8Array, path: string): Promise<void>;
    downloadFile(path: string): Promise<Uint8Array>;
  };
  delete(): Promise<void>;
}

interface DaytonaClient {
  create(parameters: object): Promise<DaytonaSandbox>;
  [Symbol.asyncDispose]?(): Promise<void>;
}

interface DaytonaPackage {
  Daytona: new (settings: object) => DaytonaClient;
}

export class DaytonaSandboxToolkit extends SandboxToolkit {
  constructor(config: DaytonaToolkitConfig = {}) {
    const apiKey = config.apiKey ?? environment('DAYTONA_API_KEY');
    if (!apiKey) throw new MissingApiKeyError('pass apiKey or set DAYTONA_API_KEY');
    const load = config.sdk ? () => config.sdk : findPackage(['@daytonaio/sdk', '@daytona/sdk'], '@daytonaio/sdk', '@daytonaio/sdk');
    const idleS = config.idleTimeoutSeconds ?? DEFAULT_IDLE_SECONDS;
    const open = async () => {
      const { Daytona } = load() as DaytonaPackage;
      const client = new Daytona({ apiKey, ...address(config.baseURL), ...(config.target ? { target: config.target } : {}) });
      const sandbox = await client.create({
        ...snapshot(config.template),
        // Minutes, at least one; an ephemeral sandbox is deleted when it stops.
        autoStopInterval: Math.max(1, Math.ceil(idleS / 60)),
        ephemeral: true,
      });
      return new DaytonaBackend(client, sandbox);
    };
    super(new LazySandbox('daytona', open, config.defaultTimeoutSeconds), config);
  }
}

/** Daytona's API is below `/api` of its host. */
function address(baseURL: string | undefined): { apiUrl?: string } {
  if (!baseURL) return {};
  const url = new URL(baseURL);
  return { apiUrl: url.pathname === '/' ? `${url.origin}/api` : baseURL.replace(/\/+$/, '') };
}

/** `base` is Daytona's default snapshot, which has no name there. */
function snapshot(template: string | undefined): { snapshot?: string } {
  return template === undefined || template === 'base' ? {} : { snapshot: template };
}

class DaytonaBackend implements Backend {
  constructor(
    private readonly client: DaytonaClient,
    private readonly sandbox: DaytonaSandbox,
  ) {}

  get vendor(): DaytonaSandbox {
    return this.sandbox;
  }

  async exec(command: string, timeoutSeconds: number, env: Record<string, string>): Promise<SandboxResult> {
    const began = Date.now();
    const limited = limitedCommand(command, timeoutSeconds);
    const limit = Math.ceil(timeoutSeconds + GRACE_SECONDS);
    const done = await this.sandbox.process.executeCommand(limited, undefined, env, limit);
    return limitedResult(done.result, done.exitCode, Date.now() - began, timeoutSeconds);
  }

  async write(path: string, data: Uint8Array): Promise<void> {
    await this.sandbox.fs.uploadFile(asBuffer(data), path);
  }

  async read(path: string): Promise<Uint8Array | null> {
    try {
      return await this.sandbox.fs.downloadFile(path);
    } catch (error) {
      if (isNotFound(error) && !this.isGone(error)) return null;
      throw error;
    }
  }

  async close(): Promise<void> {
    try {
      await this.sandbox.delete();
    } finally {
      // Ends the connection for notifications, which keeps a program running.
      await this.client[Symbol.asyncDispose]?.();
    }
  }

  isGone(error: unknown): boolean {
    return isNotFound(error) && (error as Error).name !== 'DaytonaFileNotFoundError' && /sandbox/i.test((error as Error).message);
  }
}

function isNotFound(error: unknown): boolean {
  return error instanceof Error && ((error as { statusCode?: number }).statusCode === 404 || error.name.endsWith('NotFoundError'));
}

/** The package asks for Node's own kind of array. */
function asBuffer(data: Uint8Array): Uint8Array {
  const known = globalThis as { Buffer?: { from(data: ArrayBufferLike, start: number, length: number): Uint8Array } };
  return known.Buffer?.from(data.buffer, data.byteOffset, data.byteLength) ?? data;
}
