// The controls, the URL and the words. All numbers come from /api/run; plot.js draws them.

import { Plot } from "./plot.js";

const form = document.querySelector("#controls");
const tabs = [...document.querySelectorAll("[role=tab]")];
const plot = new Plot(document.querySelector("#plot"), document.querySelector("#tip"));
const place = form.querySelector("[value=place]");
const at = (id) => document.getElementById(id);

let algorithm = tabs[0].dataset.algorithm;
let running = false;
let wanted; // the newest query that is not answered yet
let moved = false; // whether "waits in line" was replaced, because a naive state has no line

/** The controls as a query. Defaults are left out, so that links stay short. */
function query() {
  const search = new URLSearchParams();
  if (algorithm !== tabs[0].dataset.algorithm) search.set("algorithm", algorithm);
  for (const input of form.elements) {
    if (!input.name || input.disabled) continue;
    const isDefault = input.type === "radio" ? input.defaultChecked : input.value === input.defaultValue;
    if ((isDefault && input.validity.valid) || (input.type === "radio" && !input.checked)) continue;
    // A text that is no number, and a required field that is empty, are sent as an empty text. The
    // server says what is wrong with them.
    if (input.value !== "" || !input.validity.valid) search.set(input.name, input.value);
  }
  return search.toString();
}

/** Set the controls from a query. Controls that it does not name get their defaults. */
function fill(search) {
  const asked = new URLSearchParams(search);
  form.reset();
  moved = false;
  for (const [name, value] of asked) {
    const input = form.elements[name];
    if (input) input.value = value; // this also works for a group of radio buttons
  }
  const known = tabs.find((tab) => tab.dataset.algorithm === asked.get("algorithm"));
  choose(known ?? tabs[0]);
}

function choose(tab) {
  algorithm = tab.dataset.algorithm;
  for (const one of tabs) {
    one.setAttribute("aria-selected", one === tab);
    one.tabIndex = one === tab ? 0 : -1;
  }
  document.title = `${tab.textContent} – fleetlimit lab`;
  at("panel").setAttribute("aria-labelledby", tab.id);
  for (const text of document.querySelectorAll("[data-text]")) {
    text.hidden = text.dataset.text !== algorithm;
  }
  offer("burst", "burst" in tab.dataset);
  suit();
}

/** Show or hide the controls that have a meaning only with certain other choices. */
function suit() {
  const naive = form.elements.state.value === "naive";
  offer("latency", naive);
  place.disabled = naive;
  at("no-line").hidden = !naive;
  if (naive && place.checked) {
    form.elements.denied.value = "countdown";
    moved = true;
  } else if (!naive && moved) {
    place.checked = true;
    moved = false;
  }
}

function offer(name, yes) {
  form.elements[name].disabled = !yes;
  form.querySelector(`[data-for=${name}]`).hidden = !yes;
}

/** Show a run. The server plays one run at a time for each client. So a query that comes while another
 *  one is under way replaces the query that waits, and only the newest run is shown. */
async function run(search) {
  wanted = search;
  if (running) return;
  running = true;
  at("answer").setAttribute("aria-busy", "true");
  while (wanted !== undefined) {
    const asked = wanted;
    const { again, error, found } = await ask(asked);
    if (wanted !== asked) continue;
    if (again) {
      fail(`Waiting: ${error}.`);
      await new Promise((done) => setTimeout(done, again));
      continue;
    }
    wanted = undefined;
    if (found) show(found);
    else fail(error);
  }
  running = false;
  at("answer").setAttribute("aria-busy", "false");
}

/** @returns the document of /api/run, or an error. If the error may pass, `again` is when to ask again (ms). */
async function ask(search) {
  try {
    const answer = await fetch(`api/run?${search}`);
    const body = await answer.json();
    if (answer.ok) return { found: body };
    const busy = answer.status === 429 || answer.status === 503;
    return { error: body.error, again: busy && 1000 * Number(answer.headers.get("retry-after")) };
  } catch {
    return { error: "The server does not answer. Is `fleetlimit lab` running?" };
  }
}

function show(found) {
  at("error").hidden = true;
  at("answer").hidden = false;
  at("summary").textContent = found.summary;
  at("code").textContent = found.code;
  at("key-bound").hidden = found.numbers.bound === found.limit;
  at("key-boundary").hidden = found.boundaries.length === 0;
  at("figures").replaceChildren(...found.figures.map(figure));
  plot.draw(found);
}

function figure({ label, value, note, tone }) {
  const box = document.createElement("div");
  box.className = tone;
  for (const [tag, className, text] of [["dt", "", label], ["dd", "value", value], ["dd", "note", note]]) {
    const part = document.createElement(tag);
    part.className = className;
    part.textContent = text;
    box.append(part);
  }
  return box;
}

/** Show an error, and hide the former answer, because it does not belong to the present query. */
function fail(text) {
  at("error").textContent = text;
  at("error").hidden = false;
  at("answer").hidden = true;
}

function changed() {
  const search = query();
  history.replaceState(null, "", `?${search}`);
  run(search);
}

/** Where an arrow, Home or End leads from tab `n`; undefined for other keys. */
function next(key, n) {
  const last = tabs.length - 1;
  return { ArrowRight: n < last ? n + 1 : 0, ArrowLeft: n > 0 ? n - 1 : last, Home: 0, End: last }[key];
}

tabs.forEach((tab, n) => {
  tab.addEventListener("click", () => {
    choose(tab);
    changed();
  });
  tab.addEventListener("keydown", (event) => {
    const target = tabs[next(event.key, n)];
    if (!target) return;
    event.preventDefault();
    target.focus();
    target.click();
  });
});
form.addEventListener("input", () => {
  suit();
  changed();
});
form.addEventListener("submit", (event) => event.preventDefault());

function follow(search) {
  fill(search);
  run(search.replace(/^\?/, ""));
}

document.querySelector("nav").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", link.search || "?");
  follow(link.search);
});
window.addEventListener("popstate", () => follow(location.search));
follow(location.search);
