// The names of tenants. Sandboxes carry the id of theirs; an admin key sees those of several.
import { get, type CurrentKey, type Tenant } from './api';

class Tenants {
  #names = $state.raw<ReadonlyMap<string, string>>(new Map());
  #asked = new Set<string>();

  /** The name of a tenant, or its id while the name is not known. */
  name(id: string): string {
    return this.#names.get(id) ?? id;
  }

  /** Reads the names once if there is a tenant that was not seen before. */
  async learn(ids: Iterable<string>): Promise<void> {
    const unseen = [...ids].filter((id) => !this.#asked.has(id));
    if (!unseen.length) return;
    unseen.forEach((id) => this.#asked.add(id));
    try {
      const own = await get<CurrentKey>('/v1/keys/current');
      // A user key sees its own tenant only.
      const all = own.scope === 'admin' ? (await get<{ items: Tenant[] }>('/v1/tenants')).items : [{ id: own.tenant, name: own.tenant_name }];
      this.#names = new Map(all.map((one) => [one.id, one.name]));
    } catch {
      // Ids are shown instead, and the next visit asks again.
      unseen.forEach((id) => this.#asked.delete(id));
    }
  }
}

export const tenants = new Tenants();
