// The page: asks, shows one search or two, lists what is kept, and takes the key.

import { Refused, ask, follow, keptSearches, key, models } from "./api.js";
import { SearchModel } from "./model.js";
import { Pane, element } from "./pane.js";

const UNAUTHORIZED = 401;
const byName = (id) => document.getElementById(id);
const said = document.documentElement.dataset; // what the server says of itself: data-key, data-store
const panes = [];
let stopping = null;
let next = null; // what to do again once there is a key

function paneAt(index) {
  for (let made = panes.length; made <= index; made++) {
    panes.push(new Pane(made ? "Second search" : "First search"));
    byName("panes").append(panes[made].root);
  }
  byName("panes").classList.toggle("two", panes.length > 1);
  return panes[index];
}

function keepPanes(number) {
  for (const pane of panes.splice(number)) pane.discard();
  byName("panes").classList.toggle("two", panes.length > 1);
}

function problem(id, message) {
  byName(id).hidden = !message;
  byName(id).textContent = message ?? "";
}

// Runs `work`; asks for the key where it is missing or wrong, and then does it again.
async function withKey(work) {
  if (said.key === "yes" && !key.get()) return askForKey(work, null);
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== UNAUTHORIZED) throw error;
    key.set("");
    return askForKey(work, error.message);
  }
}

function askForKey(work, message) {
  next = work;
  problem("key-problem", message);
  if (!byName("key-dialog").open) byName("key-dialog").showModal();
}

function setUpKey() {
  byName("open-key").hidden = said.key !== "yes";
  byName("open-key").onclick = () => askForKey(null, null);
  byName("key-form").onsubmit = () => {
    key.set(byName("key").value.trim());
    byName("key").value = "";
    const work = next;
    next = null;
    if (work && key.get()) withKey(work).catch((error) => problem("problem", error.message));
  };
}

function setUpSearches() {
  for (const index of [1, 2]) {
    const field = byName(`search-${index}`);
    field.append(byName("search").content.cloneNode(true));
    const [how, width] = ["how", "width"].map((name) => field.querySelector(`[name=${name}]`));
    how.onchange = () => {
      const { width: name, value } = how.selectedOptions[0].dataset;
      field.querySelector(".width").hidden = width.disabled = !name;
      field.querySelector(".width span").textContent = name ?? "";
      width.value = value ?? "";
    };
    how.onchange();
  }
  byName("compare").onchange = (event) => {
    byName("search-2").hidden = byName("search-2").disabled = !event.target.checked;
    if (event.target.checked) copySearch();
  };
  byName("search-2").disabled = true;
}

// The second search begins as the first one, to be changed in one thing.
function copySearch() {
  const [from, to] = [byName("search-1"), byName("search-2")];
  for (const name of ["how", "width", "seed", "more"]) {
    to.querySelector(`[name=${name}]`).value = from.querySelector(`[name=${name}]`).value;
    if (name === "how") to.querySelector("[name=how]").onchange();
  }
}

function asked(form, index) {
  const field = byName(`search-${index + 1}`);
  const value = (name, place = field) => place.querySelector(`[name=${name}]`).value.trim();
  const how = value("how");
  const seed = value("seed") === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : Number(value("seed"));
  const budget = ["tokens", "nodes", "seconds", "thinking"].filter((name) => value(name, form)).map((name) => [name, Number(value(name, form))]);
  const search = { logprobs: true, ...(budget.length ? { budget: Object.fromEntries(budget) } : {}) };
  const effort = how.startsWith("effort:") ? how.slice(7) : null;
  const name = field.querySelector("[name=how]").selectedOptions[0].dataset.width;
  if (!effort) search.strategy = how;
  if (name) search[name] = Number(value("width"));
  try {
    Object.assign(search, JSON.parse(value("more") || "{}"));
  } catch {
    throw new Refused("more settings must be a JSON object", null);
  }
  const question = value("question", form);
  const about = { question, strategy: search.strategy, effort, width: name ? `${name} ${search[name]}` : null, seed };
  const body = { messages: [{ role: "user", content: question }], seed, search };
  if (effort) body.reasoning_effort = effort;
  if (form.elements.keep.checked && said.store === "yes") body.store = true;
  return { about, body };
}

function setUpAsking() {
  const form = byName("ask");
  byName("keep-label").hidden = said.store !== "yes";
  byName("stop").onclick = () => stopping?.abort();
  form.onsubmit = (event) => {
    event.preventDefault();
    problem("problem", null);
    withKey(() => run(form)).catch((error) => problem("problem", error.message));
  };
  form.elements.question.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  };
}

async function run(form) {
  const jobs = (byName("compare").checked ? [0, 1] : [0]).map((index) => asked(form, index));
  const [{ id: model }] = await models();
  keepPanes(jobs.length);
  await runIn(jobs.map(({ about, body }) => [about, (...rest) => ask({ model, ...body }, ...rest)]));
}

// Runs searches at the same time, each in its pane. `jobs`: what is known of each, and the function that reads it.
async function runIn(jobs, first = 0) {
  stopping?.abort();
  const stops = (stopping = new AbortController());
  byName("stop").hidden = false;
  await Promise.allSettled(jobs.map(async ([about, read], index) => {
    const pane = paneAt(first + index);
    const model = new SearchModel(about);
    pane.show(model);
    pane.busy = true;
    try {
      await read(model, () => pane.refresh(), stops.signal);
    } catch (error) {
      if (pane.model === model) pane.fail(stops.signal.aborted ? "stopped" : error.message);
    }
    if (pane.model === model) {
      pane.busy = false;
      pane.refresh();
    }
  }));
  if (stopping === stops) byName("stop").hidden = true;
}

function setUpKept() {
  let last = null;
  const load = async () => {
    const page = await keptSearches(last);
    last = page.last_id;
    byName("kept").append(...page.data.map(keptEntry));
    byName("more").hidden = !page.has_more;
    byName("kept-note").textContent = byName("kept").children.length ? "" : "Nothing is kept yet: ask with “Keep” on.";
  };
  const guarded = () => withKey(load).catch((error) => (byName("kept-note").textContent = error.message));
  byName("open-kept").hidden = said.store !== "yes";
  byName("open-kept").onclick = () => {
    last = null;
    byName("kept").replaceChildren();
    byName("kept-dialog").showModal();
    guarded();
  };
  byName("more").onclick = guarded;
}

function keptEntry(search) {
  const item = element("li");
  const when = new Date(search.created_at * 1000).toLocaleString();
  const text = element("div");
  text.append(
    element("bdi", search.question || search.id),
    element("small", [search.strategy.replaceAll("_", " "), search.n > 1 && `n ${search.n}`, search.status, `${search.nodes} nodes`, when].filter(Boolean).join(" · ")),
  );
  const about = { question: search.question, strategy: search.strategy, width: search.n > 1 ? `n ${search.n}` : null };
  const open = (index) => () => {
    byName("kept-dialog").close();
    if (!index) keepPanes(1);
    else paneAt(0);
    runIn([[about, (...rest) => follow(search.id, ...rest)]], index);
  };
  const buttons = ["Open", "Beside"].map((name, index) => {
    const button = element("button", name);
    button.type = "button";
    button.onclick = open(index);
    return button;
  });
  item.append(text, ...buttons);
  return item;
}

function showSaved(saved) {
  document.body.classList.add("saved");
  saved.searches.slice(0, 2).forEach((search, index) => paneAt(index).show(SearchModel.from(search)));
}

for (const button of document.querySelectorAll("dialog .close")) button.onclick = () => button.closest("dialog").close();
const saved = byName("saved");
if (saved) showSaved(JSON.parse(saved.textContent));
else {
  setUpKey();
  setUpSearches();
  setUpAsking();
  setUpKept();
  paneAt(0);
  if (said.key === "yes" && !key.get()) askForKey(null, null);
}
