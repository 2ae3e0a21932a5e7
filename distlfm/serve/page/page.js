// The page: what is chosen, what is asked for, and what is told. It talks to the program that served it, and nobody else.

import { byId, comparedTable, dataTable, element, forceTables, parameterTable, say, sentences } from "./show.js";

const LOOK_MS = 500;
const TELL_SECONDS = 15;
const KEY = "distlfm-token";

let [about, sources, answer, fit, suggestion] = [null, [], null, null, null];

class Refusal extends Error {}

// The link that was printed has the token behind its #. It goes into this tab, and out of the address.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return false;
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
  return true;
}

takeToken();
window.addEventListener("hashchange", () => takeToken() && location.reload());

// ---- asking ---------------------------------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch {
    throw new Refusal("distlfm does not answer. Was it closed? Start `distlfm serve` again.");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  if (response.status === 401) {
    await askToken(token ? told.error : "");
    return ask(path, options);
  }
  throw new Refusal(told.error ?? `The request failed (${response.status}).`);
}

const askJson = async (path, options) => (await ask(path, options)).json();

let asking = null;

function askToken(error) {
  asking ??= new Promise((resolve) => {
    sessionStorage.removeItem(KEY);
    say("token-error", error ?? "");
    const dialog = byId("token-dialog");
    dialog.oncancel = (event) => event.preventDefault();
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, byId("token").value.trim());
      byId("token").value = "";
      dialog.close();
      asking = null;
      resolve();
    };
    dialog.showModal();
    byId("token").focus();
  });
  return asking;
}

// Answers may come in another order than they were asked for. Gives whether what is asked for now is still the last.
const asked = {};
function latest(what) {
  const mine = (asked[what] = (asked[what] ?? 0) + 1);
  return () => asked[what] === mine;
}

// Until it is there, no picture of another patient stands in its place.
async function picture(image, path, alt) {
  const wanted = latest(image.id);
  if (image.src) URL.revokeObjectURL(image.src);
  image.removeAttribute("src");
  image.alt = "";
  const blob = await (await ask(path)).blob();
  if (!wanted()) return;
  image.src = URL.createObjectURL(blob);
  image.alt = alt;
}

async function download(path) {
  const response = await ask(path);
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "");
  const address = URL.createObjectURL(await response.blob());
  const link = element("a", "", { href: address, download: name ? name[1] : "download" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// What goes wrong while `work` is done is told at `place`.
async function telling(place, work) {
  say(place, "");
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Refusal)) console.error(error);
    say(place, error instanceof Refusal ? error.message : `The page has a fault: ${error.message}`);
  }
}

// ---- data -----------------------------------------------------------------------------------------------------------

async function begin() {
  about = await askJson("/api/about");
  sources = about.sources;
  const span = about.dims.map((dim) => {
    const unit = about.units[dim.name];
    return `${dim.name} ${dim.start} to ${dim.stop}${unit && unit !== "1" && unit !== "unknown" ? ` ${unit}` : ""}`;
  });
  say("about", `This operator learned ${about.mechanism ?? "an equation"}. From ${about.outputs.join(", ")} over `
    + `${span.join(", ")} it infers ${about.forces.join(", ")}. ${about.notices.join(" ")}`.trim());
  say("limit", `Up to ${about.max_megabytes} MB.`);
  say("fit-how", about.fit);
  sentences(byId("fit-priors"), about.fit_priors);
  say("made", `distlfm ${about.version}, operator ${about.checkpoint}. Nothing of this session is kept but what you `
    + "download.");
  byId("start").disabled = about.no_fit !== null;
  if (about.no_fit) say("fit-status", about.no_fit);
  listSources();
}

async function listSources(chosen) {
  const list = byId("source");
  list.replaceChildren(...sources.map((one) => element("option", `${one.name} (${one.count})`, { value: one.key })));
  if (chosen) list.value = chosen;
  byId("choose").hidden = sources.length === 0;
  byId("search").value = "";
  if (sources.length) await listPatients();
}

const source = () => sources.find((one) => one.key === byId("source").value);

async function listPatients() {
  const here = source();
  byId("forget").hidden = !here.dropped;
  sentences(byId("notices"), [...here.set_aside.map((text) => `Set aside: ${text}`), ...here.notices]);
  const [search, wanted] = [encodeURIComponent(byId("search").value), latest("patients")];
  const { found, patients } = await askJson(`/api/sources/${here.key}/patients?search=${search}`);
  if (!wanted()) return;
  const list = byId("patients");
  list.replaceChildren(...patients.map((one) => element("option", one.id, { value: one.place })));
  list.selectedIndex = patients.length ? 0 : -1;
  byId("show").disabled = !patients.length;
  const some = found > patients.length ? ` The first ${patients.length} are listed.` : "";
  say("found", `${found} of ${here.count} ${here.count === 1 ? "patient" : "patients"}.${some}`);
}

async function take(file) {
  await telling("file-error", async () => {
    say("file-status", `Reading ${file.name} …`);
    dropSuggestion(file.name);
    try {
      const query = new URLSearchParams({ name: file.name, size: file.size });
      for (const line of byId("settings").value.split("\n")) if (line.trim()) query.append("setting", line.trim());
      // A file that is too large need not be sent to be refused.
      const body = file.size > about.max_megabytes * 2 ** 20 ? "" : file;
      const found = await askJson(`/api/sources?${query}`, { method: "POST", body });
      sources = [...sources, found];
      await listSources(found.key);
      say("file-status", `${found.name}: ${found.count} ${found.count === 1 ? "patient" : "patients"}.`);
    } catch (error) {
      say("file-status", "");
      if (error.message.includes("columns.time")) suggestColumns(file.name);
      throw error;
    }
    await showAnswer();
  });
}

// Which column is which is in doubt: open the place where that is said, with what is known filled in.
function suggestColumns(name) {
  byId("reading").open = true;
  if (byId("settings").value.trim()) return;
  const columns = ["data.columns.time=time", `data.columns.values=[${about.outputs.join(", ")}]`];
  suggestion = { name, text: columns.join("\n") };
  byId("settings").value = suggestion.text;
}

// What was filled in for one file, and nobody changed, says nothing about the next one.
function dropSuggestion(name) {
  if (suggestion && suggestion.name !== name && byId("settings").value === suggestion.text) byId("settings").value = "";
}

async function forget() {
  await telling("file-error", async () => {
    const gone = source();
    await ask(`/api/sources/${gone.key}`, { method: "DELETE" });
    sources = sources.filter((one) => one.key !== gone.key);
    byId("answer").hidden = byId("fit").hidden = true;
    sentences(byId("notices"), []);
    await listSources();
    say("file-status", `${gone.name} is forgotten.`);
    byId("file").focus();
  });
}

// ---- the answer -----------------------------------------------------------------------------------------------------

async function showAnswer(focus = false) {
  await telling("file-error", async () => {
    const place = Number(byId("patients").value);
    const [body, wanted] = [JSON.stringify({ source: byId("source").value, place }), latest("answer")];
    const found = await askJson("/api/answers", { method: "POST", body });
    if (!wanted()) return;
    answer = found;
    byId("answer").hidden = byId("fit").hidden = false;
    byId("answer-title").textContent = `Answer for ${answer.id}`;
    const score = answer.novelty === null ? "not known" : `${answer.novelty.toFixed(2)}, where 1 is the limit`;
    say("answer-status", `Answered in ${Math.max(1, Math.round(1000 * answer.seconds))} ms. Unlike the training data: `
      + `${score}.`);
    say("unlike", answer.warning ?? "");
    byId("answer-words").textContent = answer.text;
    byId("answer-caption").textContent = answer.caption;
    byId("answer-parameters").replaceChildren(...parameterTable(answer));
    byId("answer-numbers").replaceChildren(...forceTables(answer, answer.units));
    byId("answer-data").replaceChildren(...dataTable(answer));
    if (!fit || fit.state !== "running") clearFit();
    if (focus) byId("answer-title").focus(); // not when the picture is there: whoever reads may be elsewhere by then
    await picture(byId("answer-figure"), `/api/answers/${answer.key}/figure.svg`, answer.text);
  });
}

// ---- the full fit ---------------------------------------------------------------------------------------------------

function clearFit() {
  fit = null;
  byId("fit-result").hidden = byId("fit-progress").hidden = byId("cancel").hidden = true;
  say("fit-error", "");
  say("fit-status", about.no_fit ?? "");
  sentences(byId("fit-priors"), about.fit_priors);
}

async function startFit() {
  await telling("fit-error", async () => {
    byId("start").disabled = true;
    try {
      fit = await askJson(`/api/answers/${answer.key}/fit`, { method: "POST" });
      sentences(byId("fit-priors"), fit.priors);
      byId("fit-result").hidden = true;
      byId("fit-progress").hidden = byId("cancel").hidden = false;
      byId("cancel").disabled = false;
      byId("cancel").focus();
      await follow();
    } finally {
      byId("start").disabled = false;
    }
  });
}

async function follow() {
  let told = { step: -1, seconds: 0 };
  while (fit && fit.state === "running") {
    byId("progress").max = fit.steps;
    byId("progress").value = fit.step;
    byId("fit-seconds").textContent = `${Math.round(fit.seconds)} s`;
    if (fit.step !== told.step || fit.seconds - told.seconds > TELL_SECONDS) {
      told = { step: fit.step, seconds: fit.seconds };
      const since = fit.seconds > TELL_SECONDS ? `, for ${Math.round(fit.seconds)} seconds` : "";
      say("fit-status", `Fit of ${fit.id}, step ${fit.step + 1} of ${fit.steps}: ${fit.stage}${since}.`);
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    if (fit) fit = await askJson(`/api/fits/${fit.key}`);
  }
  // A button that is hidden or disabled loses the focus to nowhere.
  const lost = [byId("cancel"), document.body].includes(document.activeElement);
  byId("fit-progress").hidden = byId("cancel").hidden = true;
  byId("start").disabled = about.no_fit !== null;
  if (lost) byId("start").focus();
  if (!fit) return;
  if (fit.state === "failed") throw new Refusal(fit.error);
  if (fit.state === "cancelled") say("fit-status", `The fit of ${fit.id} was cancelled.`);
  if (fit.state === "done") await showFit();
}

async function showFit() {
  byId("fit-name").textContent = `Full fit of ${fit.id}`;
  say("fit-status", `The fit of ${fit.id} is done, in ${fit.seconds.toFixed(0)} s (${fit.method}). ${fit.words}`);
  byId("comparison-caption").textContent = fit.agreement.caption;
  sentences(byId("agreement"), fit.agreement.forces.map((one) => one.text));
  sentences(byId("open-directions"), fit.open);
  byId("fit-parameters").replaceChildren(...comparedTable(fit.parameters));
  byId("fit-numbers").replaceChildren(...forceTables(fit, about.units));
  const own = fit.pictures.includes("fit.svg");
  byId("fit-own").hidden = byId("fit-png").hidden = !own;
  const words = fit.agreement.forces.map((one) => one.text).join(" ");
  await picture(byId("comparison-figure"), `/api/fits/${fit.key}/comparison.svg`, `${words} ${fit.agreement.text}`);
  if (own) await picture(byId("fit-figure"), `/api/fits/${fit.key}/fit.svg`, `${fit.agreement.text} ${fit.words}`);
  byId("fit-result").hidden = false;
}

async function cancelFit() {
  await telling("fit-error", async () => {
    byId("cancel").disabled = true;
    if (fit) await ask(`/api/fits/${fit.key}`, { method: "DELETE" });
  });
}

// ---- events ---------------------------------------------------------------------------------------------------------

byId("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) await take(file);
  event.target.value = ""; // the same file may be chosen again
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}
byId("source").addEventListener("change", () => telling("file-error", listPatients));
byId("search").addEventListener("input", () => telling("file-error", listPatients));
byId("forget").addEventListener("click", forget);
byId("show").addEventListener("click", () => showAnswer(true));
byId("patients").addEventListener("dblclick", () => showAnswer(true));
byId("patients").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !byId("show").disabled) showAnswer(true);
});
byId("start").addEventListener("click", startFit);
byId("cancel").addEventListener("click", cancelFit);
for (const button of document.querySelectorAll("[data-answer]")) {
  const path = () => `/api/answers/${answer.key}/${button.dataset.answer}`;
  button.addEventListener("click", () => telling("file-error", () => download(path())));
}
for (const button of document.querySelectorAll("[data-fit]")) {
  button.addEventListener("click", () => telling("fit-error", () => download(`/api/fits/${fit.key}/${button.dataset.fit}`)));
}

telling("file-error", begin);
