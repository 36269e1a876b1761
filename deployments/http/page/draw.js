// Draws a tree on a canvas: the root at the left, a level to the right for each step.

const SHADES = 24;
const PLACES = [0, 0.5, 1];
const LABEL_DOWN = 14; // pixels between lines and between levels from which on there are labels
const LABEL_ACROSS = 112;
const RING_DOWN = 8;
const REACH = 16; // pixels from a node at which a click still means it

export function readTheme(element) {
  const style = getComputedStyle(element);
  const value = (name) => style.getPropertyValue(name).trim();
  const stops = ["--low", "--middle", "--high"].map((name) => value(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
  const shade = (reward) => {
    const upper = reward < PLACES[1] ? 1 : 2;
    const share = (reward - PLACES[upper - 1]) / 0.5;
    return `rgb(${stops[upper].map((part, index) => Math.round(stops[upper - 1][index] + share * (part - stops[upper - 1][index])))})`;
  };
  return {
    shades: Array.from({ length: SHADES + 1 }, (_, index) => shade(index / SHADES)),
    ...Object.fromEntries(["ink", "soft", "line", "paper", "unscored", "focus"].map((name) => [name, value(`--${name}`)])),
    font: style.fontFamily,
  };
}

// Maps breadth and level to pixels. The two scales differ, so that wide and deep trees both fit.
export class Camera {
  constructor() {
    Object.assign(this, { left: 0, top: 0, across: 80, down: 24, width: 0, height: 0, own: false });
  }

  fit(extent, width, height) {
    const breadths = extent.most - extent.least;
    const levels = Math.max(1, extent.levels);
    this.width = width;
    this.height = height;
    this.down = Math.min(44, (height - 56) / Math.max(1, breadths));
    const labelled = this.down >= LABEL_DOWN && width / (levels + 1) >= LABEL_ACROSS;
    this.across = Math.min(260, (width - 44) / (levels + (labelled ? 0.95 : 0)));
    this.left = 22;
    this.top = (height - breadths * this.down) / 2 - extent.least * this.down + (labelled ? 6 : 0);
    this.own = false;
  }

  x(node) {
    return this.left + node.level * this.across;
  }

  y(node) {
    return this.top + node.breadth * this.down;
  }

  // Breadth grows faster than depth: what a dense tree lacks is the room between its lines.
  zoom(factor, x, y) {
    const down = Math.min(120, Math.max(0.2, this.down * factor)) / this.down;
    const across = Math.min(600, Math.max(20, this.across * down ** 0.6)) / this.across;
    this.left = x - (x - this.left) * across;
    this.top = y - (y - this.top) * down;
    this.across *= across;
    this.down *= down;
    this.own = true;
  }

  pan(x, y) {
    this.left += x;
    this.top += y;
    this.own = true;
  }

  // Moves as little as shows a node.
  reveal(node) {
    const [x, y] = [this.x(node), this.y(node)];
    const into = (place, most) => (place < 24 ? 24 - place : place > most - 24 ? most - 24 - place : 0);
    const [dx, dy] = [into(x, this.width), into(y, this.height)];
    if (dx || dy) this.pan(dx, dy);
  }
}

export function radius(camera, copies) {
  const alone = Math.min(6.5, Math.max(1.5, camera.down * 0.4));
  return alone * Math.min(2.1, copies > 1 ? 0.85 + 0.3 * Math.sqrt(copies) : 0.85);
}

export function nearest(nodes, x, y) {
  let found = null, least = REACH;
  for (const node of nodes) {
    const distance = Math.hypot(node.x - x, node.y - y);
    if (distance < least) [found, least] = [node, distance];
  }
  return found;
}

// Draws `nodes`, parents first, which have `x` and `y`. `scene`: camera, theme, moment, model, answering, selected.
export function draw(context, nodes, scene) {
  const { camera, theme, moment, model, answering } = scene;
  const { width, height } = camera;
  context.clearRect(0, 0, width, height);
  const inside = (node) => node.x > -40 && node.x < width + 40 && node.y > -40 && node.y < height + 40;
  const drawn = nodes.filter((node) => inside(node) || (node.above && inside(node.above)));
  edges(context, drawn, scene);
  const batches = new Map();
  const small = camera.down < 5;
  for (const node of drawn) {
    if (node === model.root || !inside(node)) continue;
    const copies = model.copiesAt(node, moment);
    const size = radius(camera, copies);
    const shade = node.reward === null ? theme.unscored : theme.shades[Math.round(node.reward * SHADES)];
    const gone = node.prunedAt <= moment;
    const batch = `${shade}|${gone ? "gone" : "here"}|${node.ahead ? "ahead" : ""}`;
    if (!batches.has(batch)) batches.set(batch, { shade, gone, ahead: node.ahead, path: new Path2D(), rings: new Path2D() });
    const { path, rings } = batches.get(batch);
    outline(path, node, size, small);
    if (copies > 1 && camera.down >= RING_DOWN) outline(rings, node, size + 2.5);
  }
  for (const { shade, gone, ahead, path, rings } of batches.values()) {
    context.globalAlpha = ahead ? 0.45 : 1;
    context.fillStyle = gone ? theme.paper : shade;
    context.strokeStyle = shade;
    context.fill(path);
    context.lineWidth = camera.down < 5 ? 0.8 : 1.6;
    if (gone) context.stroke(path);
    context.lineWidth = 1;
    context.stroke(rings);
  }
  context.globalAlpha = 1;
  const root = model.root;
  context.fillStyle = theme.ink;
  context.beginPath();
  context.arc(root.x, root.y, 5, 0, 2 * Math.PI);
  context.fill();
  for (const node of answering) {
    if (node.seen > moment) continue;
    const size = radius(camera, model.copiesAt(node, moment)) + 0.5;
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    context.beginPath();
    outline(context, node, size);
    context.stroke();
  }
  if (camera.down >= LABEL_DOWN && camera.across >= LABEL_ACROSS) labels(context, drawn, scene);
}

// A diamond for a context. A square where the path ends, and where a circle could not be told from one: squares are drawn faster.
function outline(path, node, size, small = false) {
  if (node.sources) {
    const corners = [[0, -1], [1, 0], [0, 1], [-1, 0], [0, -1]].map(([x, y]) => [node.x + 1.5 * size * x, node.y + 1.5 * size * y]);
    return corners.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
  }
  if (node.ends || small) return path.rect(node.x - size, node.y - size, 2 * size, 2 * size);
  path.moveTo(node.x + size, node.y);
  path.arc(node.x, node.y, size, 0, 2 * Math.PI);
}

function edges(context, nodes, { camera, theme, moment, answering, model }) {
  const kinds = { gone: new Path2D(), answer: new Path2D(), read: new Path2D() };
  const dense = camera.down < 9;
  for (const node of nodes) {
    if (node === model.root) continue;
    const { above } = node;
    for (const source of node.sources?.slice(1) ?? []) {
      const { x, y } = model.shownFor(source);
      kinds.read.moveTo(x, y);
      kinds.read.lineTo(node.x, node.y);
    }
    const plain = dense && node.reward !== null ? theme.shades[Math.round(node.reward * SHADES)] : theme.line;
    const kind = answering.has(node) ? "answer" : node.prunedAt <= moment ? "gone" : plain;
    const path = (kinds[kind] ??= new Path2D());
    const bend = (node.x - above.x) / 2;
    path.moveTo(above.x, above.y);
    path.bezierCurveTo(above.x + bend, above.y, node.x - bend, node.y, node.x, node.y);
  }
  const { answer, gone, read, ...plain } = kinds;
  context.lineWidth = camera.down < 5 ? 0.7 : 1.2;
  context.globalAlpha = dense ? 0.6 : 1; // in a dense tree lines carry the colours: nodes are too small to
  for (const [shade, path] of Object.entries(plain)) {
    context.strokeStyle = shade;
    context.stroke(path);
  }
  context.globalAlpha = 1;
  context.strokeStyle = theme.line;
  context.stroke(read); // what a context reads besides the solution that it stands below
  if (nodes.length < 800) context.setLineDash([2, 3]); // dashes cost most of a frame where there are thousands
  context.stroke(gone);
  context.setLineDash([]);
  context.strokeStyle = theme.ink;
  context.lineWidth = camera.down < 5 ? 1.8 : 2.6;
  context.stroke(answer);
}

function labels(context, nodes, { camera, theme, moment, model, answering, selected }) {
  context.textBaseline = "middle";
  context.direction = "ltr";
  context.lineJoin = "round";
  context.strokeStyle = theme.paper;
  context.lineWidth = 4;
  const placed = [];
  const isStrong = (node) => answering.has(node) || node === selected;
  for (const node of [...nodes.filter(isStrong), ...nodes.filter((node) => !isStrong(node))]) {
    if (node === model.root || node.text === null) continue;
    const size = radius(camera, model.copiesAt(node, moment));
    const inner = node.below.some((child) => child.seen <= moment);
    const strong = isStrong(node);
    if (inner && camera.down < 24 && !strong) continue; // above it there is no room
    const [x, y] = inner ? [node.x, node.y - size - 11] : [node.x + size + 7, node.y];
    const room = inner ? camera.across - 14 : Math.min(camera.across - size - 30, camera.width - x - 6);
    context.textAlign = inner ? "center" : "left";
    context.font = `${strong ? "600 " : ""}${camera.down >= 20 ? 12 : 11}px ${theme.font}`;
    const text = fitted(lineOf(node), room, context);
    const long = context.measureText(text).width;
    const box = { left: inner ? x - long / 2 : x, right: inner ? x + long / 2 : x + long, y };
    if (placed.some((other) => Math.abs(other.y - y) < 13 && other.left < box.right && box.left < other.right)) continue;
    placed.push(box); // a label over another would make both unreadable
    context.strokeText(text, x, y);
    context.fillStyle = strong ? theme.ink : theme.soft;
    context.fillText(text, x, y);
  }
}

// One line without invisible characters and without marks that would turn the text around.
// The beginning of a step in one line, without its thinking if anything stands behind that.
export function lineOf({ text, thinking }) {
  return ((text ?? "").slice(thinking.length).trim() || text || "").slice(0, 400).replace(/\s+/gu, " ").replace(/[\p{Cc}\p{Cf}]/gu, "").trim();
}

function fitted(text, room, context) {
  const letters = Array.from(text).slice(0, 80);
  const fitting = Math.floor((room / context.measureText(letters.join("")).width) * letters.length);
  if (letters.length === text.length && fitting >= letters.length) return `\u2068${text}\u2069`;
  return fitting < 5 ? "" : `\u2068${letters.slice(0, fitting - 1).join("")}…\u2069`;
}
