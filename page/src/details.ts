// All numbers of one frame.
import type { Change, Item, Totals } from "./data";
import { make } from "./dom";
import { bytes, count, flops, percent, time } from "./numbers";

interface Line {
  title: string;
  value: (totals: Totals) => number;
  text: (totals: Totals) => string;
}

const LINES: Line[] = [
  { title: "calls", value: (t) => t.calls, text: (t) => count(t.calls) },
  { title: "own", value: (t) => t.own, text: (t) => time(t.own) },
  { title: "with inner calls", value: (t) => t.cumulative, text: (t) => time(t.cumulative) },
  { title: "per call, mean", value: (t) => t.mean, text: (t) => time(t.mean) },
  { title: "deviation", value: (t) => t.std, text: (t) => `\u00b1 ${time(t.std)}` },
  { title: "shortest", value: (t) => t.least, text: (t) => time(t.least) },
  { title: "longest", value: (t) => t.most, text: (t) => time(t.most) },
  { title: "device, own", value: (t) => t.deviceOwn, text: (t) => time(t.deviceOwn) },
  { title: "device, with inner calls", value: (t) => t.deviceCumulative, text: (t) => time(t.deviceCumulative) },
  { title: "FLOPs, own", value: (t) => t.flops, text: (t) => flops(t.flops) },
  { title: "FLOPs, with inner calls", value: (t) => t.flopsCumulative, text: (t) => flops(t.flopsCumulative) },
  { title: "memory used", value: (t) => t.usedCumulative, text: (t) => bytes(t.usedCumulative) },
  { title: "memory retained", value: (t) => t.retainedCumulative, text: (t) => bytes(t.retainedCumulative) },
  { title: "memory peak of a call", value: (t) => t.peak, text: (t) => bytes(t.peak) },
];

/** A table of phases, or of one: an item has few of them. */
export function details(item: Item, wall: number, changes: Change[]): Node[] {
  const title = item.name || "everything";
  const kind = item.kind === "module" ? item.className : item.name ? item.kind : "";
  const cumulative = item.totals.reduce((sum, totals) => sum + totals.cumulative, 0);
  const own = item.totals.reduce((sum, totals) => sum + totals.own, 0);
  const parts: Node[] = [
    make("h3", { class: "name" }, title),
    make("p", { class: "kind" }, [kind, item.marks].filter(Boolean).join(", ")),
    make("p", {}, `${time(cumulative)}, ${percent(cumulative, wall)} of the time; own ${time(own)}, ${percent(own, wall)}`),
  ];
  if (item.totals.length) parts.push(numbers(item));
  if (changes.length) parts.push(changed(changes));
  return parts;
}

function numbers(item: Item): HTMLElement {
  const phases = item.totals;
  const lines = LINES.filter((line) => phases.some((totals) => line.value(totals) !== 0));
  const heading = make("tr", {}, make("td"), ...phases.map((totals) => make("th", { scope: "col" }, totals.phase)));
  const body = lines.map((line) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, line.title),
      ...phases.map((totals) => make("td", {}, line.value(totals) === 0 ? "" : line.text(totals))),
    ),
  );
  return make("table", { class: "numbers" }, make("thead", {}, heading), make("tbody", {}, ...body));
}

function changed(changes: Change[]): HTMLElement {
  const lines = changes.map((change) => {
    const verdict = change.verdict > 0 ? "slower" : change.verdict < 0 ? "faster" : "within noise";
    const text = `${change.phase}: ${time(change.before)} before, ${time(change.after)} now, ${verdict}`;
    return make("li", { class: verdict === "within noise" ? "same" : verdict }, text);
  });
  return make("ul", {}, ...lines);
}
