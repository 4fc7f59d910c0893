"use strict";
// Filters the episodes of a rollouts page. Texts of the model are set as textContent only.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows.map((values, index) => {
  const row = { index };
  data.columns.forEach((name, i) => { row[name] = values[i]; });
  row.search = [row.prompt, row.response, row.note, row.error].join("\n").toLowerCase();
  return row;
});
const at = (id) => document.getElementById(id);
const PAGE = 48;
let found = [];
let shown = 0;

function options(id, values) {
  for (const value of values) at(id).add(new Option(value, value));
}

function number(id) {
  return at(id).value.trim() === "" ? null : Number(at(id).value);
}

function valueOf(row, part) {
  const value = part === "reward" ? row.reward : (row.parts || {})[part];
  return value === undefined ? null : value;
}

function filter() {
  const text = at("text").value.trim().toLowerCase();
  const [kind, finish, kept, part, order] = ["kind", "finish", "kept", "part", "order"].map((id) => at(id).value);
  const [from, to, low, high] = ["from", "to", "low", "high"].map(number);
  found = rows.filter((row) => {
    const value = valueOf(row, part);
    return (!text || row.search.includes(text)) && (!kind || row.kind === kind) &&
      (!finish || row.finish_reason === finish) && (!kept || String(row.kept) === kept) &&
      (from === null || row.step >= from) && (to === null || row.step <= to) &&
      (low === null || (value !== null && value >= low)) && (high === null || (value !== null && value <= high));
  });
  const last = order === "most" ? -Infinity : Infinity;
  const key = (row) => { const value = valueOf(row, part); return value === null ? last : value; };
  const orders = {
    new: (a, b) => b.step - a.step || b.index - a.index,
    old: (a, b) => a.step - b.step || a.index - b.index,
    most: (a, b) => key(b) - key(a) || b.index - a.index,
    least: (a, b) => key(a) - key(b) || b.index - a.index,
    long: (a, b) => b.num_tokens - a.num_tokens || b.index - a.index,
  };
  found.sort(orders[order]);
  shown = 0;
  at("list").replaceChildren();
  more();
}

function element(name, cls, text) {
  const node = document.createElement(name);
  if (cls) node.className = cls;
  node.textContent = text;
  return node;
}

function card(row) {
  const node = element("div", "card sample", "");
  const prompt = element("p", "", row.prompt);
  if (row.target !== null) prompt.append(" ", element("span", "muted", `(target ${row.target})`));
  const parts = Object.entries(row.parts || {}).map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`);
  const facts = [`step ${row.step}`, row.kind, `${row.num_tokens} tokens`, row.finish_reason, ...parts];
  if (!row.kept && row.kind === "train") facts.push(`dropped: ${row.reason || "not graded"}`);
  const reward = row.reward === null ? "not graded" : `reward ${Number(row.reward.toPrecision(4))}`;
  node.append(prompt, element("p", "text", row.response || "(empty)"), element("p", "score", reward),
    element("p", "muted", facts.join(", ")));
  if (row.note) node.append(element("p", "muted", row.note));
  if (row.error) node.append(element("p", "muted", `error: ${row.error}`));
  return node;
}

function more() {
  at("list").append(...found.slice(shown, shown + PAGE).map(card));
  shown = Math.min(found.length, shown + PAGE);
  at("count").textContent = `${found.length} match, ${shown} shown`;
  at("more").hidden = shown >= found.length;
}

const distinct = (name) => [...new Set(rows.map((row) => row[name]))].filter(Boolean).sort();
options("kind", distinct("kind"));
options("finish", distinct("finish_reason"));
options("part", data.parts);
document.querySelector("form").addEventListener("input", filter);
at("more").addEventListener("click", more);
filter();
