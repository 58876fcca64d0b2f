// The columns of the tables: those in which there is anything.
import type { Change, Item, Totals } from "./data";
import { bytes, count, flops, percent, time } from "./numbers";
import type { Column } from "./table";

function sum(item: Item, value: (totals: Totals) => number): number {
  return item.totals.reduce((total, phase) => total + value(phase), 0);
}

function most(item: Item, value: (totals: Totals) => number): number {
  return item.totals.reduce((highest, phase) => Math.max(highest, value(phase)), 0);
}

function column(title: string, value: (item: Item) => number, text: (value: number) => string): Column<Item> {
  return { title, value, text: (item) => (value(item) === 0 ? "" : text(value(item))) };
}

function inPhase(title: string): Column<Item> {
  return column(title, (item) => sum(item, (t) => (t.phase === title ? t.cumulative : 0)), time);
}

/** The first is the name. "own" is what rows are sorted by at first. */
export function rowColumns(by: string, rows: Item[], wall: number): Column<Item>[] {
  const own = (item: Item): number => sum(item, (t) => t.own);
  const names: Column<Item>[] = [{ title: by, value: (item) => item.name, text: (item) => item.name }];
  if (by === "module") {
    names.push({ title: "class", value: (item) => item.className, text: (item) => (item.kind === "module" ? item.className : item.kind) });
  }
  const share = column("own %", own, (value) => percent(value, wall));
  const largest = rows.reduce((most, row) => Math.max(most, own(row)), 1);
  share.bar = (item) => Math.max(own(item), 0) / largest;
  const numbers = [
    column("calls", (item) => item.calls, count),
    inPhase("forward"),
    inPhase("backward"),
    inPhase("recompute"),
    column("total", (item) => sum(item, (t) => t.cumulative), time),
    column("own", own, time),
    share,
    column("device", (item) => sum(item, (t) => t.deviceCumulative), time),
    column("FLOPs", (item) => sum(item, (t) => t.flopsCumulative), flops),
    column("own FLOPs", (item) => sum(item, (t) => t.flops), flops),
    column("retained", (item) => sum(item, (t) => (t.phase === "forward" ? t.retainedCumulative : 0)), bytes),
    column("peak", (item) => most(item, (t) => t.peak), bytes),
  ];
  return [...names, ...numbers.filter((each) => rows.some((row) => each.value(row) !== 0))];
}

export function changeColumns(by: string): Column<Change>[] {
  const verdict = (change: Change): string => (change.verdict > 0 ? "slower" : change.verdict < 0 ? "faster" : "");
  const difference = (change: Change): number => change.after - change.before;
  const signed = (value: number, text: string): string => (value > 0 ? `+${text}` : text);
  return [
    { title: by, value: (change) => change.name, text: (change) => change.name },
    { title: "phase", value: (change) => change.phase, text: (change) => change.phase },
    { title: "before", value: (change) => change.before, text: (change) => time(change.before) },
    { title: "now", value: (change) => change.after, text: (change) => time(change.after) },
    { title: "change", value: difference, text: (change) => signed(difference(change), time(difference(change))) },
    {
      title: "change %",
      value: (change) => difference(change) / (change.before || 1),
      text: (change) => signed(difference(change), percent(difference(change), change.before)),
    },
    {
      title: "noise",
      value: (change) => change.noise,
      text: (change) => (Number.isFinite(change.noise) ? time(change.noise) : "unknown"),
    },
    { title: "calls", value: (change) => change.calls, text: (change) => change.calls },
    { title: "verdict", value: verdict, text: verdict, className: verdict },
  ];
}
