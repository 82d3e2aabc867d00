// Which overlays are open.
import type { CreateBody } from './api';

class Ui {
  palette = $state(false);
  help = $state(false);
  /** The values that the form of a new sandbox starts with. */
  create = $state.raw<Partial<CreateBody> | null>(null);
  /** The values that the form of a new thread starts with. */
  thread = $state.raw<{ thread?: string } | null>(null);
}

export const ui = new Ui();
