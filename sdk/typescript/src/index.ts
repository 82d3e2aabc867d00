/** Atoll: isolated Linux sandboxes for AI agents. */
export { Atoll, type EventOptions } from './client.js';
export type { AtollOptions } from './settings.js';
export type { RequestOptions } from './transport.js';
export { type ChangeOptions, type CreateOptions, type ForkOptions, type ListOptions, type LogLine, Sandbox, Sandboxes, type UpdateOptions } from './sandbox.js';
export {
  type Command,
  type CommandEvent,
  type CommandOptions,
  Commands,
  type OutputEvent,
  Process,
  type ProcessResult,
} from './commands.js';
export { type FileChange, Files, type GrepOptions, type WriteOptions } from './files.js';
export { Code, CodeContexts, type CodeEvent, type CodeOptions, type Execution } from './code.js';
export { type CloneOptions, Git, type RemoteOptions } from './git.js';
export { Sessions } from './sessions.js';
export { Terminal, type TerminalOptions, Terminals } from './terminals.js';
export { Egress, type EgressOptions, type PreviewOptions, Previews } from './network.js';
export { Keys, Providers, Secrets, Snapshots, Threads } from './resources.js';
export { type Progress, Templates, type WorkOptions } from './templates.js';
export { type BuildOptions, Builds } from './builds.js';
export { Volumes } from './volumes.js';
export type { FileData } from './bytes.js';
export {
  AtollError,
  AuthenticationError,
  ConflictError,
  ConnectionFailedError,
  type ErrorDetails,
  ExhaustedError,
  ForbiddenError,
  InternalError,
  InvalidError,
  NotFoundError,
  RequestTimeoutError,
  UnavailableError,
  UnsupportedError,
} from './errors.js';
export type * from './types.js';

export type {
  CloudSandbox,
  FileEncoding,
  RunOptions,
  SandboxLanguage,
  SandboxResult,
  ShellOptions,
} from './toolkits/cloud_sandbox.js';
export type { JsonSchema, SandboxTool, ToolSettings } from './toolkits/tools.js';
export { MissingApiKeyError, SandboxToolkit, type ToolkitConfig } from './toolkits/toolkit.js';
export { E2BSandboxToolkit, type E2BToolkitConfig } from './toolkits/e2b.js';
export { DaytonaSandboxToolkit, type DaytonaToolkitConfig } from './toolkits/daytona.js';
export {
  AgentBaySandboxToolkit,
  AtollSandboxToolkit,
  type AtollToolkitConfig,
  DockerSandboxToolkit,
  LocalSandboxToolkit,
} from './toolkits/atoll.js';
export {
  type AgentMessage,
  type AgentModel,
  type ModelAnswer,
  SandboxAgent,
  type SandboxAgentOptions,
  type ToolCall,
  type TurnResult,
} from './toolkits/agent.js';
