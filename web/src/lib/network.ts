import type { NetworkPolicy, Sandbox } from './api';

/** The policy in its long form. */
export function policyOf(network: Sandbox['network']): NetworkPolicy {
  return typeof network === 'string' ? { mode: network } : network;
}

export function policyText(policy: NetworkPolicy): string {
  if (policy.learn) return 'all public destinations, recorded (learn mode)';
  if (policy.mode === 'allow-all') return 'all public destinations';
  if (policy.mode === 'deny-all') return 'nothing';
  const allowed = [...(policy.allow_domains ?? []), ...(policy.allow_cidrs ?? [])];
  return allowed.length ? `only ${allowed.slice(0, 6).join(', ')}${allowed.length > 6 ? ` and ${allowed.length - 6} more` : ''}` : 'nothing';
}
