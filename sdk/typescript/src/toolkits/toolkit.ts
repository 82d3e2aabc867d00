/** A toolkit: the tools of one sandbox, which is created at the first call and lives until `close()`. */
import type { CloudSandbox } from './cloud_sandbox.js';
import { type SandboxTool, sandboxTools, type ToolSettings } from './tools.js';

/** What the toolkits of all providers take. */
export interface ToolkitConfig extends ToolSettings {
  /** Default: the variable of the provider, such as `E2B_API_KEY`. */
  apiKey?: string;
  /** Default: `base`. */
  template?: string;
  /** Time limit of a call that names none. Default: 30. */
  defaultTimeoutSeconds?: number;
  /** Address of the API, for one that you host yourself. */
  baseURL?: string;
  /** The sandbox ends after this many seconds without a call. Default: 600. */
  idleTimeoutSeconds?: number;
}

export const DEFAULT_IDLE_SECONDS = 600;

/** The tools of a sandbox. One toolkit per session: a sandbox must not be shared between users. */
export class SandboxToolkit implements AsyncDisposable {
  constructor(
    private readonly sandbox: CloudSandbox,
    private readonly settings: ToolSettings = {},
  ) {}

  getTools(): SandboxTool[] {
    return sandboxTools(this.sandbox, this.settings);
  }

  /**
   * The sandbox itself, for example to write files before the first call. Once it is created, it also has the members of the
   * vendor's object: `getSandbox<Sandbox>().getHost?.(3000)`. `vendor` is that object.
   */
  getSandbox<Vendor extends object = object>(): CloudSandbox & Partial<Vendor> {
    return withVendor(this.sandbox) as CloudSandbox & Partial<Vendor>;
  }

  /** Ends the sandbox. */
  async close(): Promise<void> {
    await this.sandbox.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** A sandbox that also has the members of its vendor's object. Its own have precedence. */
function withVendor(sandbox: CloudSandbox): CloudSandbox {
  const memberOf = (owner: object, name: PropertyKey): unknown => {
    const member: unknown = Reflect.get(owner, name);
    return typeof member === 'function' ? member.bind(owner) : member;
  };
  return new Proxy(sandbox, {
    get: (_, name) => memberOf(name in sandbox ? sandbox : (sandbox.vendor ?? sandbox), name),
    has: (_, name) => name in sandbox || (sandbox.vendor !== undefined && name in sandbox.vendor),
  });
}

/** A key is missing. The hint says how to give one. */
export class MissingApiKeyError extends Error {
  override readonly name = 'MissingApiKeyError';

  constructor(readonly hint: string) {
    super('missing API key');
  }
}
