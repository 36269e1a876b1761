// One search on the page: its tree, the slider through time, the selected step, the answer with its vote and cost.

import { Camera, draw, lineOf, nearest, radius, readTheme } from "./draw.js";
import { tidy } from "./layout.js";
import { SearchModel } from "./model.js";

const PLAY_MS = 6000;
const EASE = 0.3; // share of its way that a node moves in a frame
const FOLLOWS_UP_TO = 4000; // nodes: beyond, they jump to their places
const HIDDEN = /[\p{Cf}\p{Cc}]/gu;

const number = new Intl.NumberFormat("en");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const count = (value) => number.format(value);
const percent = (share) => `${Math.round(100 * share)}%`;
const textOf = ({ text, thinking, hook }) => [element("i", thinking, "thinking"), (text ?? "").slice(thinking.length), ...(hook?.text ? [element("ins", hook.text)] : [])];
const nameOf = (node) => `${node.sources ? "Context" : "Step"} ${node.key}`;
const decimals = (value, digits = 2) => (typeof value === "number" ? value.toFixed(digits) : value);
const bill = (written, read, seconds) => `${count(Math.round(written))} tokens written, ${count(read)} read, ${decimals(seconds, 1)}\u00a0s`;

export function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

export class Pane {
  constructor(name) {
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.root.setAttribute("aria-label", name);
    const find = (selector) => this.root.querySelector(selector);
    Object.assign(this, {
      canvas: find("canvas"), tree: find(".tree"), active: find(".active"), stage: find(".stage"), slider: find("input"),
      doing: find(".state :first-child"), totals: find(".state :last-child"), step: find(".step"), result: find(".result"), output: find("output"), problem: find(".problem"),
      empty: find(".empty"),
    });
    this.active.id = `active-${name.replace(/\W/g, "")}`;
    this.context = this.canvas.getContext("2d");
    this.camera = new Camera();
    this.observer = new ResizeObserver(() => this.#resized());
    this.observer.observe(this.stage);
    this.recolour = () => {
      this.theme = null;
      this.refresh();
    };
    dark.addEventListener("change", this.recolour);
    find(".in").onclick = () => this.#zoom(1.4);
    find(".out").onclick = () => this.#zoom(1 / 1.4);
    find(".fit").onclick = () => this.#fit();
    find(".export").onclick = () => this.#export();
    find(".play").onclick = () => this.#play();
    find(".step .close").onclick = () => this.#close();
    this.slider.oninput = () => this.#seek(Number(this.slider.value));
    this.tree.onkeydown = (event) => this.#key(event);
    this.step.onkeydown = (event) => event.key === "Escape" && this.#close();
    this.#pointers();
    this.show(new SearchModel({}));
  }

  show(model) {
    Object.assign(this, { model, selected: null, moment: 0, follows: true, playing: null, busy: false, failure: null, extent: null });
    this.camera.own = false;
    this.root.querySelector("h2").textContent = this.title;
    this.#showStep();
    this.result.hidden = true;
    this.finished = false;
    this.refresh();
  }

  get title() {
    const { strategy, effort, width, seed } = this.model.about;
    const drawn = this.model.search?.seed ?? seed ?? null;
    const parts = [effort ? `${effort} effort` : strategy?.replaceAll("_", " "), width, drawn !== null && `seed ${drawn}`];
    return parts.filter(Boolean).join(" · ");
  }

  get now() {
    return this.follows ? this.model.length : this.moment;
  }

  // Draws with the next frame, once however often it is called.
  refresh() {
    this.waiting ??= requestAnimationFrame((time) => {
      this.waiting = null;
      this.#frame(time);
    });
  }

  fail(message) {
    this.failure = message;
    this.refresh();
  }

  discard() {
    this.observer.disconnect();
    dark.removeEventListener("change", this.recolour);
    cancelAnimationFrame(this.waiting);
    this.root.remove();
  }

  #frame(time) {
    const { model, camera } = this;
    this.theme ??= readTheme(this.stage);
    if (model.changed || !this.extent) {
      model.drawn; // merges
      this.extent = tidy(model.root);
      if (!camera.own) camera.fit(this.extent, this.stage.clientWidth, this.stage.clientHeight);
      if (this.selected) this.selected = model.shownFor(this.selected);
    }
    if (this.playing !== null) {
      const share = Math.min(1, (time - this.playing) / PLAY_MS);
      this.#seek(Math.round(share * model.length), true);
      if (share < 1) this.refresh();
      else this.playing = null;
    }
    const moment = this.now;
    const nodes = model.drawn.filter((node) => node.seen <= moment);
    if (this.#move(nodes)) this.refresh();
    const answering = this.follows || moment === model.length ? model.answering : new Set();
    draw(this.context, nodes, { camera, theme: this.theme, moment, model, answering, selected: this.selected });
    this.nodes = nodes;
    this.tree.classList.toggle("own", camera.own); // then a finger moves the tree, not the page
    this.#place();
    this.#texts(moment);
  }

  #move(nodes) {
    const jump = this.jump || still.matches || nodes.length > FOLLOWS_UP_TO;
    this.jump = false;
    let moving = false;
    for (const node of nodes) {
      const [x, y] = [this.camera.x(node), this.camera.y(node)];
      if (node.x === null) [node.x, node.y] = node.above ? [node.above.x, node.above.y] : [x, y];
      const [dx, dy] = [x - node.x, y - node.y];
      if (jump || Math.abs(dx) + Math.abs(dy) < 0.5) [node.x, node.y] = [x, y];
      else {
        node.x += dx * EASE;
        node.y += dy * EASE;
        moving = true;
      }
    }
    return moving;
  }

  #texts(moment) {
    const { model } = this;
    const { tokens } = model.totalsAt(moment);
    const put = (target, text) => target.textContent !== text && (target.textContent = text);
    this.slider.max = model.length;
    this.slider.value = moment;
    put(this.output, `${count(moment)} of ${count(model.length)}`);
    const doing = this.failure ? "failed" : this.busy ? (model.length ? "searching" : "waiting for the first step") : model.search ? "answered" : "";
    const steps = model.length ? `${count(this.nodes.filter((node) => node.parent && !node.sources).length)} distinct steps · ${count(tokens)} tokens` : "";
    put(this.doing, doing); // screen readers say this one; the totals change too often
    put(this.totals, (doing && steps && " · ") + steps);
    this.problem.hidden = !this.failure;
    this.empty.hidden = this.busy || this.failure || model.length;
    put(this.problem, this.failure ?? "");
    if (model.search && !this.finished) this.#showResult();
  }

  // The focus ring, which is also what screen readers read, lies on the selected node.
  #place() {
    const node = this.selected;
    const shown = node && node.seen <= this.now;
    this.active.hidden = !shown;
    if (!shown) return this.tree.removeAttribute("aria-activedescendant");
    const size = radius(this.camera, this.model.copiesAt(node, this.now)) + 7;
    this.active.style.transform = `translate(${node.x - size}px, ${node.y - size}px)`;
    this.active.style.width = this.active.style.height = `${2 * size}px`;
    this.tree.setAttribute("aria-activedescendant", this.active.id);
  }

  select(node) {
    this.selected = node;
    if (node) {
      this.camera.reveal(node);
      const said = { level: node.level + 1, posinset: node.number + 1, setsize: node.above?.below.length ?? 1, selected: true };
      for (const [name, value] of Object.entries(said)) this.active.setAttribute(`aria-${name}`, value);
      const reward = node.reward === null ? "" : `, reward ${decimals(node.reward)}`;
      const label = node.parent ? `${nameOf(node)}${reward}: ${lineOf(node).slice(0, 200)}` : "The question";
      this.active.setAttribute("aria-label", label);
    }
    this.#showStep();
    this.refresh();
  }

  #showStep() {
    const node = this.selected;
    this.step.hidden = !node;
    this.root.classList.toggle("reading", Boolean(node));
    if (!node) return;
    const [text, whole] = this.step.querySelectorAll("pre");
    this.step.querySelector("h3").textContent = node.parent ? nameOf(node) : "Question";
    text.replaceChildren(...(node.parent ? textOf(node) : [this.model.about.question ?? ""]));
    const hidden = text.textContent.replace(/[\n\t]/g, "").match(HIDDEN)?.length ?? 0;
    const hint = this.step.querySelector(".hint");
    hint.hidden = !hidden;
    hint.textContent = hidden ? `${count(hidden)} invisible ${hidden === 1 ? "character" : "characters"} in this text` : "";
    this.step.querySelector("details").hidden = !node.parent || Boolean(node.sources);
    whole.replaceChildren(...this.model.path(node).flatMap(textOf));
    fill(this.step.querySelector("dl"), node.parent ? this.#facts(node) : []);
  }

  #facts(node) {
    if (node.sources) return [["reads", node.sources.map((source) => source.key).join(", ")], ["prompt", `${count(node.tokens)} tokens`]];
    const perToken = typeof node.logprob === "number" && node.tokens ? ` (${decimals(node.logprob / node.tokens)} a token)` : "";
    const copies = node.copies.filter((copy) => copy.born < Infinity);
    const state = [
      this.model.answering.has(node) && "on the answering path", node.prunedAt < Infinity && "pruned", node.hook?.failed && "the step hook failed",
      node.ends && (node.hook?.ends ? "ended by the step hook" : "the path ends here"), node.ahead && "lookahead",
    ];
    const computed = node.prefix - node.cached;
    return [
      ["reward", node.reward === null ? "not scored" : decimals(node.reward, 3)],
      ["path score", node.score === null ? null : decimals(node.score, 3)],
      ["log-probability", node.logprob === null ? "not reported" : decimals(node.logprob) + perToken],
      ["tokens", count(node.tokens)],
      ["prefix", node.cached === null ? (node.prefix ? `${count(node.prefix)} tokens, written in one go with the step before` : null)
        : `${count(node.cached)} of ${count(node.prefix)} tokens from the generator's caches, ${count(computed)} computed`],
      ["written", copies.length > 1 ? `${count(copies.length)} times: ${copies.map((copy) => copy.key).join(", ").slice(0, 300)}` : null],
      ["state", state.filter(Boolean).join(", ") || null],
    ].filter(([, value]) => value !== null);
  }

  #showResult() {
    const { model, result } = this;
    const block = model.search;
    [this.finished, result.hidden] = [true, false];
    this.root.querySelector("h2").textContent = this.title;
    const said = result.querySelector(".answer");
    said.textContent = (block.answer ?? model.answer) || "none found";
    said.classList.toggle("long", said.textContent.length > 40);
    result.querySelector(".vote").replaceChildren(...(block.answers ?? []).map((group) => this.#group(group)));
    const cached = block.prefix_tokens ? block.cached_tokens / block.prefix_tokens : 0;
    fill(result.querySelector("dl"), [
      ["tokens generated", count(block.generated_tokens ?? 0)],
      ["prefix from cache", `${percent(cached)} of ${count(block.prefix_tokens ?? 0)} tokens`],
      ["reward calls", `${count(block.prm_calls ?? 0)}, for ${count(block.scored_steps ?? 0)} steps`],
      ["nodes", `${count(block.nodes ?? 0)}, ${count(block.repeated_steps ?? 0)} of them repeated`],
      ...(block.sample_tokens ? [["in all", bill(block.written_tokens, block.read_tokens, block.seconds)], ["one sample", bill(block.sample_tokens, block.prompt_tokens, block.sample_seconds)]] : [["time", `${decimals(block.seconds ?? 0, 1)} s`]]),
    ]);
    const notes = [...(block.notes ?? [])];
    if (block.stop_reason && block.stop_reason !== "finished") notes.unshift(`cut short: ${block.stop_reason}`);
    if (block.degraded && !block.hook_failures && !block.tool_limits) notes.unshift("some steps were never scored by the reward model");
    result.querySelector(".notes").replaceChildren(...notes.map((note) => element("li", note)));
  }

  #group(group) {
    const [item, button, best] = [element("li"), element("button"), this.model.at(group.node)];
    const { share = 0, vote = share } = group; // a search that was saved before votes were told has shares
    const samples = `${percent(share)} of samples`;
    const score = typeof group.score === "number" && `best ${decimals(group.score)}`;
    const decided = { weighted: `${percent(vote)} of weight`, naive: score }[this.model.search.selection];
    const paths = `${count(group.paths)} ${group.paths === 1 ? "path" : "paths"}`;
    const figures = new Set([decided, samples, paths, score].filter(Boolean));
    button.append(element("bdi", group.answer), element("small", [...figures].join(" · ")));
    button.style.setProperty("--vote", vote);
    Object.assign(button, { type: "button", title: "Show its best path's last step", disabled: !best });
    button.onclick = () => {
      this.#seek(this.model.length);
      this.select(best);
    };
    item.append(button);
    return item;
  }

  #seek(moment, plays = false) {
    if (!plays) this.playing = null;
    this.moment = moment;
    this.follows = moment >= this.model.length;
    this.refresh();
  }

  #play() {
    this.playing = this.playing === null ? performance.now() : null;
    this.refresh();
  }

  #fit() {
    if (this.extent) this.camera.fit(this.extent, this.stage.clientWidth, this.stage.clientHeight);
    this.refresh();
  }

  #zoom(factor, x = this.camera.width / 2, y = this.camera.height / 2) {
    this.camera.zoom(factor, x, y);
    this.jump = true;
    this.refresh();
  }

  #resized() {
    const { clientWidth: width, clientHeight: height } = this.stage;
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (this.extent && !this.camera.own) this.camera.fit(this.extent, width, height);
    Object.assign(this.camera, { width, height });
    this.jump = true;
    this.refresh();
  }

  #close() {
    this.select(null);
    this.tree.focus({ preventScroll: true });
  }

  #key(event) {
    const { selected, model } = this;
    const visible = (node) => node && node.seen <= this.now;
    const beside = (by) => {
      const row = this.nodes.filter((node) => node.level === selected.level).sort((one, other) => one.breadth - other.breadth);
      return row[row.indexOf(selected) + by];
    };
    const moves = {
      ArrowRight: () => selected.below.find(visible), ArrowLeft: () => selected.above,
      ArrowDown: () => beside(1), ArrowUp: () => beside(-1), Home: () => model.root, End: () => model.at(model.search?.node),
    };
    const does = {
      "+": () => this.#zoom(1.4), "=": () => this.#zoom(1.4), "-": () => this.#zoom(1 / 1.4), 0: () => this.#fit(),
      Enter: () => this.selected && this.step.focus(), Escape: () => this.select(null),
    };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in moves) {
      const next = selected || event.key === "End" ? moves[event.key]() : model.root;
      if (visible(next)) this.select(next);
    } else if (event.key in does) does[event.key]();
    else return;
    event.preventDefault();
  }

  // A click selects, a drag moves the tree, two fingers or the wheel with Ctrl zoom it.
  #pointers() {
    const held = new Map();
    const place = (event) => {
      const box = this.stage.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const spread = () => {
      const [one, other] = held.values();
      return { far: Math.hypot(one.x - other.x, one.y - other.y), x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 };
    };
    let moved = 0;
    this.tree.onpointerdown = (event) => {
      this.tree.setPointerCapture(event.pointerId);
      held.set(event.pointerId, place(event));
      if (held.size === 1) moved = 0;
    };
    this.tree.onpointermove = (event) => {
      const [from, to] = [held.get(event.pointerId), place(event)];
      if (!from) return this.tree.classList.toggle("over", Boolean(nearest(this.nodes ?? [], to.x, to.y)));
      const before = held.size === 2 ? spread() : null;
      held.set(event.pointerId, to);
      moved += Math.hypot(to.x - from.x, to.y - from.y);
      if (moved < 5) return;
      if (before) this.#zoom(spread().far / Math.max(1, before.far), before.x, before.y);
      else this.camera.pan(to.x - from.x, to.y - from.y);
      this.jump = true;
      this.refresh();
    };
    this.tree.onpointerup = (event) => {
      const { x, y } = place(event);
      if (held.delete(event.pointerId) && !held.size && moved < 5) this.select(nearest(this.nodes ?? [], x, y));
    };
    this.tree.onpointercancel = (event) => held.delete(event.pointerId);
    this.stage.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const { x, y } = place(event);
      this.#zoom(Math.exp(-event.deltaY / 200), x, y);
    }, { passive: false });
  }

  #export() {
    const content = JSON.stringify({ version: 1, searches: [this.model] });
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
    link.download = `banyan-${this.title.replace(/[^a-z0-9]+/gi, "-") || "search"}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
}
