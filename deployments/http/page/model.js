// The tree of one search, built from the events of its stream (docs/http.md). Any moment of it can be shown: a moment is
// a number of events.

const NEVER = Infinity;

function makeNode(id, parent) {
  return {
    id, parent, key: id.join("."), text: null, thinking: "", hook: null, reward: null, score: null, logprob: null, tokens: 0, prefix: 0,
    cached: null, ends: false, ahead: id.some((index) => index < 0),
    born: NEVER, prunedAt: NEVER, sources: null, repeats: null, copies: [], below: [], seen: NEVER, x: null, y: null,
  };
}

export const byId = (one, other) => {
  for (let depth = 0; ; depth++) {
    if (depth >= one.id.length || depth >= other.id.length) return one.id.length - other.id.length;
    if (one.id[depth] !== other.id[depth]) return one.id[depth] - other.id[depth];
  }
};

export class SearchModel {
  constructor(about) {
    this.about = about; // question, strategy, n, seed: what was asked
    this.events = [];
    this.root = makeNode([], null);
    this.root.born = 0;
    this.nodes = new Map([["", this.root]]);
    this.search = null; // the reply's block, at the end
    this.answer = "";
    this.changed = true;
  }

  get length() {
    return this.events.length;
  }

  add(event) {
    if (event?.type === "step_scored" && Array.isArray(event.node)) this.#step(event);
    else if (event?.type === "steps_pruned" && Array.isArray(event.pruned)) {
      for (const id of event.pruned) this.#node(id).prunedAt = this.length + 1;
    } else if (event?.type === "context_started" && Array.isArray(event.context)) {
      const sources = event.sources.map((source) => this.#node(source));
      const text = `${event.template}: reads ${sources.length}`;
      Object.assign(this.#node(event.context), { sources, text, tokens: event.prompt_tokens, born: this.length + 1 });
    } else return;
    this.events.push(event);
    this.changed = true;
  }

  // The nodes to draw, one for each text among siblings: the root first, parents before children.
  get drawn() {
    if (this.changed) this.#merge();
    return this.order;
  }

  // How often the text was written, up to a moment.
  copiesAt(node, moment) {
    return node.copies.reduce((sum, copy) => sum + (copy.born <= moment), 0);
  }

  // The node that stands for this one: itself, unless it repeats a sibling.
  shownFor(node) {
    for (let hops = 0; node?.repeats && hops < 1000; hops++) node = node.repeats;
    return node;
  }

  at(id) {
    const node = Array.isArray(id) ? this.nodes.get(id.join(".")) : null;
    return node ? this.shownFor(node) : null;
  }

  // From the child of the root, or of a context, to this node.
  path(node) {
    const nodes = [];
    for (; node && node !== this.root && !node.sources; node = this.shownFor(node.parent)) nodes.unshift(node);
    return nodes;
  }

  get answering() {
    return new Set(this.search ? this.path(this.at(this.search.node)) : []);
  }

  // Before a moment: the totals that its last event tells.
  totalsAt(moment) {
    const { tokens = 0, nodes = 0 } = this.events[moment - 1] ?? {};
    return { tokens, nodes };
  }

  toJSON() {
    const { about, events, search, answer } = this;
    return { ...about, events, search, answer };
  }

  static from(saved) {
    const { events = [], search = null, answer = "", ...about } = saved;
    const model = new SearchModel(about);
    for (const event of events) model.add(event);
    model.search = search;
    model.answer = answer ?? "";
    return model;
  }

  #node(id) {
    const key = id.join(".");
    let node = this.nodes.get(key);
    if (!node) {
      node = makeNode(id, this.#node(id.slice(0, -1)));
      this.nodes.set(key, node);
    }
    return node;
  }

  #step(event) {
    const node = this.#node(event.node);
    Object.assign(node, {
      text: String(event.text ?? ""), hook: event.hook ?? null, reward: event.reward ?? null, score: event.score ?? null,
      logprob: event.logprob ?? null, tokens: event.step_tokens ?? 0, prefix: event.prefix_tokens ?? 0,
      cached: event.cached_tokens ?? null, ends: Boolean(event.terminal), born: this.length + 1,
    });
    node.thinking = event.thought ? [...node.text].slice(0, event.thought.characters).join("") : ""; // counted in code points
    const first = event.repeats ? this.#node(event.repeats) : null;
    node.repeats = first === node ? null : first;
    for (const id of event.repeated_by ?? []) {
      const copy = this.#node(id);
      if (copy !== node) copy.repeats = node;
    }
  }

  #merge() {
    for (const node of this.nodes.values()) Object.assign(node, { copies: [], below: [], seen: NEVER });
    for (const node of this.nodes.values()) {
      const shown = this.shownFor(node);
      shown.copies.push(node);
      shown.seen = Math.min(shown.seen, node.born);
    }
    for (const node of this.nodes.values()) {
      if (node.parent && node.copies.length && node.seen < NEVER) this.shownFor(node.parent).below.push(node);
    }
    this.order = [];
    const queue = [this.root];
    for (let next = 0; next < queue.length; next++) {
      const node = queue[next];
      this.order.push(node);
      node.below.sort(byId);
      queue.push(...node.below);
    }
    this.changed = false;
  }
}
