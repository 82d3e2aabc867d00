import type { SandboxEvent } from './api';

/** An event as a sentence. */
export function eventText(event: SandboxEvent): string {
  switch (event.kind) {
    case 'phase': {
      const why = event.reason.code === 'completed' ? '' : ` (${event.reason.code.replaceAll('_', ' ')})`;
      return `${event.from ? `${event.from} → ` : ''}${event.to}${why}${event.reason.message ? `: ${event.reason.message}` : ''}`;
    }
    case 'stage':
      return `creating: ${event.stage}`;
    case 'queued':
      return `queued, ${event.queue.ahead} ahead`;
    case 'out_of_memory':
      return 'a process was ended because the memory limit was reached';
    case 'snapshotted':
      return `snapshot ${event.snapshot}${event.memory ? ' with memory' : ''}`;
    case 'forked':
      return `forked into ${event.children.length} ${event.children.length === 1 ? 'sandbox' : 'sandboxes'}`;
    case 'checkpointed':
      return event.failure ? `memory could not be written to disk: ${event.failure}` : 'memory was written to disk';
    case 'moved':
      return event.failure ? `could not be moved to ${event.to}: ${event.failure}` : `moved from ${event.from} to ${event.to}`;
    case 'updated':
      return `changed: ${event.fields.join(', ')}`;
  }
}
