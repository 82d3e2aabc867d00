/** Atoll: isolated Linux sandboxes for AI agents. */
export { Atoll, type EventOptions } from './client.js';
export type { AtollOptions } from './settings.js';
export type { RequestOptions } from './transport.js';
export { type CreateOptions, type ForkOptions, type ListOptions, type LogLine, Sandbox, Sandboxes, type UpdateOptions } from './sandbox.js';
export * from './commands.js';
export * from './files.js';
export * from './code.js';
export * from './git.js';
export { Terminal, type TerminalOptions, Terminals } from './terminals.js';
export { Egress, type EgressOptions, type PreviewOptions, Previews } from './network.js';
export * from './resources.js';
export { type TemplateEvent, Templates } from './templates.js';
export { type BuildOptions, Builds } from './builds.js';
export { Volumes } from './volumes.js';
export type { FileData } from './bytes.js';
export * from './errors.js';
export type * from './types.js';
