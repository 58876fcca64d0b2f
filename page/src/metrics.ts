// What the width of a frame can stand for: own amounts, which add up along the tree.
import type { Item, Totals } from "./data";
import { bytes, flops, time } from "./numbers";

export interface Metric {
  id: string;
  title: string;
  /** What a share is a share of. */
  whole: string;
  own: (item: Item) => number;
  format: (value: number) => string;
}

function sum(item: Item, value: (totals: Totals) => number): number {
  return item.totals.reduce((total, phase) => total + value(phase), 0);
}

function ofPhase(phase: string): (item: Item) => number {
  return (item) => sum(item, (totals) => (totals.phase === phase ? totals.own : 0));
}

const ALL: Metric[] = [
  { id: "total", title: "Time", whole: "of the time", own: (item) => sum(item, (t) => t.own), format: time },
  { id: "forward", title: "Forward", whole: "of forward", own: ofPhase("forward"), format: time },
  { id: "backward", title: "Backward", whole: "of backward", own: ofPhase("backward"), format: time },
  { id: "recompute", title: "Recompute", whole: "of recompute", own: ofPhase("recompute"), format: time },
  { id: "device", title: "Device", whole: "of device time", own: (item) => sum(item, (t) => t.deviceOwn), format: time },
  {
    id: "memory",
    title: "Memory",
    whole: "of the memory kept for backward",
    // More can be freed than was allocated: a frame cannot be narrower than nothing.
    own: (item) => Math.max(sum(item, (t) => (t.phase === "forward" ? t.retainedOwn : 0)), 0),
    format: bytes,
  },
  { id: "flops", title: "FLOPs", whole: "of the operations", own: (item) => sum(item, (t) => t.flops), format: flops },
];

/** Those of which there is anything in a tree. */
export function metricsOf(items: Item[]): Metric[] {
  return ALL.filter((metric) => metric.id === "total" || items.some((item) => metric.own(item) > 0));
}
