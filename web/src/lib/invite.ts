// Links of `atoll open`: `#/open/CODE` hands the key over, once, and `#/open/CODE/sandboxes/ID` shows that sandbox then.
import { session } from './session.svelte';

const LINK = /^#\/open\/(inv_[0-9a-f]{40})(\/.*)?$/;

/** Redeems the code in the address, if there is one, and takes it out of the address and the history. */
export async function takeInvite(): Promise<void> {
  const found = LINK.exec(location.hash);
  if (!found) {
    // A link that was cut off on its way.
    if (location.hash.startsWith('#/open/')) {
      history.replaceState(null, '', '#/resources');
      dispatchEvent(new HashChangeEvent('hashchange'));
      session.spent = true;
      session.asking = false;
    }
    return;
  }
  history.replaceState(null, '', `#${found[2] ?? '/resources'}`);
  dispatchEvent(new HashChangeEvent('hashchange'));
  session.asking = true;
  try {
    const headers = { authorization: `Bearer ${found[1]}` };
    const response = await fetch('/v1/keys/invites/redeem', { method: 'POST', headers, credentials: 'omit', cache: 'no-store' });
    if (response.ok) session.set(((await response.json()) as { secret: string }).secret);
    else session.spent = true;
  } finally {
    session.asking = false;
  }
}
