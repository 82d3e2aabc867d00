// What the providers of the server can do, so that the page offers only that.
import { get, type Provider, type Sandbox } from './api';

/** The capabilities that the page asks for; docs/providers.md has all of them. */
export type Capability =
  | 'terminal' | 'signal' | 'keep_files' | 'disk_limit' | 'resize' | 'egress' | 'pause' | 'checkpoint' | 'snapshot' | 'archive' | 'volume';

/** What is missing without a capability, after "The provider NAME". */
const LACKS: Record<Capability, string> = {
  terminal: 'has no terminals',
  signal: 'cannot send signals',
  keep_files: 'loses the files of a stopped sandbox',
  disk_limit: 'cannot limit the size of files',
  resize: 'cannot change the limits of a running sandbox',
  egress: 'neither enforces a network policy nor records connections',
  pause: 'cannot pause',
  checkpoint: 'cannot write memory to disk',
  snapshot: 'cannot take snapshots or fork',
  archive: 'cannot archive',
  volume: 'has no volumes',
};

class Capabilities {
  providers = $state.raw<Provider[]>([]);

  /** Reads the providers again, and answers them. */
  async read(): Promise<Provider[]> {
    this.providers = (await get<{ items: Provider[] }>('/v1/providers')).items;
    return this.providers;
  }

  /** Whether a provider has a capability. One that is not known is asked by a request, and its answer says what it lacks. */
  has(provider: string, capability: Capability): boolean {
    const known = this.providers.find((one) => one.name === provider);
    return !known?.capabilities.length || known.capabilities.includes(capability);
  }

  /** Says that a provider lacks a capability: `The provider docker cannot archive.` */
  lackText(provider: string, capability: Capability): string {
    return `The provider ${provider} ${LACKS[capability]}.`;
  }
}

export const capabilities = new Capabilities();

/** Whether the provider of a sandbox can do all of this. */
export const isAble = (sandbox: Sandbox, ...needed: Capability[]) => needed.every((one) => capabilities.has(sandbox.provider, one));
