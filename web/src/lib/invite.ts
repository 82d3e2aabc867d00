// Links of `atoll open`: `#/open/CODE` hands the key over, once, and `#/open/CODE/sandboxes/ID` shows that sandbox then.
//
// A link can come from anyone, also from someone who wants the viewer to work in a foreign account. So a viewer who has a key
// is asked before a link replaces it.
import { ask } from './confirm.svelte';
import { session } from './session.svelte';
import { toasts } from './toasts.svelte';
import type { CurrentKey } from './api';

const LINK = /^#\/open\/(inv_[0-9a-f]{40})(\/.*)?$/;

/** A request with this key instead of the viewer's; a refusal says nothing about the viewer's own key. */
async function withKey(key: string, method: string, path: string): Promise<Response> {
  const headers = { authorization: `Bearer ${key}` };
  return fetch(path, { method, headers, credentials: 'omit', cache: 'no-store' });
}

/** Whose key it is: `refused` where the server does not accept it, `unknown` where it does not say (503, 429, no answer). */
type Owner = CurrentKey | 'refused' | 'unknown';

async function owner(key: string): Promise<Owner> {
  const response = await withKey(key, 'GET', '/v1/keys/current').catch(() => undefined);
  if (response?.ok) return (await response.json()) as CurrentKey;
  return response?.status === 401 ? 'refused' : 'unknown';
}

const account = (key: CurrentKey) => `the ${key.scope} key ${key.name ?? key.id} of the tenant ${key.tenant_name}`;

/** Says that a link cannot be used: on the form for a key, or beside what a viewer with a key sees. */
function spent(): void {
  session.spent = true;
  if (session.key) toasts.add({ kind: 'failed', text: 'The link was used before or is older than a minute', hint: 'run `atoll open` again' });
}

/** Uses the key of a link, if the viewer has none or agrees. */
async function enter(secret: string): Promise<void> {
  await session.settled;
  const held = session.key;
  if (held === secret) return;
  const current = held ? await owner(held) : 'refused';
  const offered = await owner(secret);
  if (offered === 'refused' || offered === 'unknown') return spent();
  // A key that the server does not accept is no account.
  const changes = current === 'unknown' || (current !== 'refused' && current.id !== offered.id);
  if (changes) {
    const now = current === 'unknown' ? 'Your current account could not be read.' : `You now use ${account(current)}.`;
    const yes = await ask({
      title: 'Change to another account?',
      text: `This link opens ${account(offered)}. ${now} Change only if you asked for this link.`,
      yes: 'Change account',
      dangerous: true,
    });
    if (!yes) return;
  }
  session.set(secret);
  // Everything on the page belongs to the account before.
  if (changes) location.reload();
  else if (!held) toasts.done(`You use ${account(offered)}`);
}

/** Redeems the code in the address, if there is one, and takes it out of the address and the history. */
export async function takeInvite(): Promise<void> {
  const found = LINK.exec(location.hash);
  if (!found) {
    // A link that was cut off on its way.
    if (location.hash.startsWith('#/open/')) {
      history.replaceState(null, '', '#/resources');
      dispatchEvent(new HashChangeEvent('hashchange'));
      spent();
      session.asking = false;
    }
    return;
  }
  history.replaceState(null, '', `#${found[2] ?? '/resources'}`);
  dispatchEvent(new HashChangeEvent('hashchange'));
  session.asking = true;
  try {
    const response = await withKey(found[1]!, 'POST', '/v1/keys/invites/redeem');
    if (response.ok) await enter(((await response.json()) as { secret: string }).secret);
    else spent();
  } finally {
    session.asking = false;
  }
}
