// The endpoint's routes that the page uses. The API key stays in this tab's session and goes nowhere else.

const KEY = "banyan-key";
const MOST_CHARACTERS = 8 << 20; // of one event: no honest one is longer

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const response = await fetch(path, { ...options, headers, credentials: "omit" });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refused(String(body?.error?.message ?? `the endpoint answered ${response.status}`), response.status);
}

const json = async (path) => (await request(path)).json();

export const models = async () => (await json("v1/models")).data;
export const keptSearches = async (after) => json(`v1/searches?limit=50${after ? `&after=${encodeURIComponent(after)}` : ""}`);

// Runs a search. Tells `model` of its events; `told` is called after each.
export async function ask(body, model, told, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST", signal, body: JSON.stringify({ ...body, stream: true }), headers: { "Content-Type": "application/json" },
  });
  for await (const chunk of events(response)) {
    if (chunk.search_event) model.add(chunk.search_event);
    const choice = chunk.choices?.[0];
    if (choice?.index === 0) model.answer += choice.delta?.content ?? "";
    if (chunk.search) model.search = chunk.search;
    told();
  }
}

// Reads a kept search, and goes on with it while it runs.
export async function follow(id, model, told, signal) {
  const response = await request(`v1/searches/${encodeURIComponent(id)}/events`, { signal });
  for await (const { search_event: event, search } of events(response)) {
    if (event) model.add(event);
    if (search) {
      if (!search.reply) throw new Refused(String(search.error?.message ?? `the search was ${search.status}`), null);
      model.search = search.reply.search;
      model.answer = search.reply.choices[0].message.content ?? "";
    }
    told();
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (rest.length > MOST_CHARACTERS) throw new Refused("an event is too long", null);
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") {
          ended = true;
          continue;
        }
        const event = JSON.parse(data);
        if (event.error) throw new Refused(String(event.error.message), null);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!ended) throw new Refused("the stream broke off before the answer", null);
}
