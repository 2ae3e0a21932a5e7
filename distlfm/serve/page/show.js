// Tables and numbers. Whatever comes from data becomes text, never markup.

const MOST_ROWS = 500;
const COLUMNS = ["mean", "lower68", "upper68", "lower95", "upper95"];
const TITLES = ["mean", "68 % from", "to", "95 % from", "to"];

export const byId = (id) => document.getElementById(id);

export function element(name, text = "", attributes = {}) {
  const found = document.createElement(name);
  found.textContent = text;
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  return found;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : String(+value.toPrecision(4));
  return text.replace("-", "−");
}

// rows: lists of cells; the first cell of a row names it. Numbers are rounded and aligned to the right.
export function table(caption, columns, rows) {
  const found = element("table");
  found.append(element("caption", caption));
  const head = element("tr");
  const numeric = columns.map((_, i) => rows.every((row) => typeof row[i] !== "string"));
  columns.forEach((name, i) => head.append(element("th", name, { scope: "col", ...(numeric[i] && { class: "number" }) })));
  found.append(element("thead"));
  found.tHead.append(head);
  const body = element("tbody");
  for (const row of rows.slice(0, MOST_ROWS)) {
    const line = element("tr");
    row.forEach((cell, i) => {
      const text = typeof cell === "string" ? cell : number(cell);
      const kind = numeric[i] ? { class: "number" } : {};
      line.append(i ? element("td", text, kind) : element("th", text, { scope: "row", ...kind }));
    });
    body.append(line);
  }
  found.append(body);
  // What scrolls must be reachable by the keyboard.
  const wide = element("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": caption });
  wide.append(found);
  if (rows.length <= MOST_ROWS) return [wide];
  return [element("p", `The first ${MOST_ROWS} of ${rows.length} rows are shown; the CSV file has all.`), wide];
}

// A column may be named with its unit, which is then not said twice.
const says = (name, unit) => [`[${unit}]`, `(${unit})`].some((end) => name.trim().endsWith(end));

export const named = (name, unit) => (unit && !says(name, unit) ? `${name} (${unit})` : name);

// Points of the grid in the order of the answer's curves: the last dimension runs fastest.
function points(dims) {
  return Object.values(dims).reduce((found, axis) => found.flatMap((row) => axis.map((x) => [...row, x])), [[]]);
}

export function forceTables(answer, units) {
  const at = points(answer.dims);
  const dims = Object.keys(answer.dims).map((name) => named(name, units[name]));
  return Object.entries(answer.forces).flatMap(([force, curves]) => {
    const flat = COLUMNS.map((name) => curves[name].flat(Infinity));
    const rows = at.map((point, i) => [...point, ...flat.map((column) => column[i])]);
    return table(`Inferred ${named(force, units[force])}`, [...dims, ...TITLES], rows);
  });
}

export function parameterTable(answer) {
  const rows = Object.entries(answer.parameters).map(([name, one]) =>
    [named(name, answer.units[name]), answer.kinds[name] ?? "", ...COLUMNS.map((column) => one[column])]);
  return rows.length ? table("Parameters with their intervals", ["parameter", "kind", ...TITLES], rows) : [];
}

export function dataTable(answer) {
  const { times, positions, outputs } = answer.observed;
  const places = positions ? positions[0].map((_, i) => named(...placeOf(answer, i))) : [];
  const names = Object.keys(outputs);
  const rows = times.map((t, i) => [t, ...(positions ? positions[i] : []), ...names.map((name) => outputs[name][i])]);
  const columns = [named("time", answer.units.time), ...places, ...names.map((name) => named(name, answer.units[name]))];
  return table("Observed values; – where nothing was observed", columns, rows);
}

function placeOf(answer, i) {
  const name = Object.keys(answer.dims)[i + 1] ?? `position ${i + 1}`;
  return [name, answer.units[name]];
}

export function comparedTable(rows) {
  const ends = (one) => (one ? [one.mean, one.lower95, one.upper95] : [null, null, null]);
  const cells = rows.map((row) => [named(row.name, row.unit), ...ends(row.operator), ...ends(row.fit)]);
  const columns = ["parameter", "operator: mean", "95 % from", "to", "full fit: mean", "95 % from", "to"];
  return cells.length ? table("Parameters of operator and full fit; – is not given", columns, cells) : [];
}

export function sentences(list, texts) {
  list.replaceChildren(...texts.map((text) => element("li", text)));
  list.hidden = texts.length === 0;
}

export function say(id, text) {
  const place = byId(id);
  place.textContent = text;
  if (place.getAttribute("role") === "alert") place.hidden = !text;
}
