// Numbers for people, written as Python writes them (units.py).
import type { Column, Unit, Value } from "./data";

const TIMES: [number, string][] = [
  [1e9, "sec"],
  [1e6, "ms"],
  [1e3, "us"],
];
const BYTES = ["B", "KB", "MB", "GB", "TB", "PB"];
const POWERS = ["", "k", "M", "G", "T", "P", "E"];

/** A time in the unit that suits `most`; in a larger unit than its own, three digits of it are left. */
function time(ns: number, most = ns): string {
  const [size, unit] = TIMES.find(([least]) => Math.abs(most) >= least) ?? [1, "ns"];
  const digits = Math.max(2, 2 - Math.floor(Math.log10(Math.abs(ns / size) || 1)));
  return `${(ns / size).toFixed(digits)}${unit}`;
}

/** Marks of an axis from 0 to the most, about so many: round numbers in one unit. */
export function ticks(unit: "ns" | "bytes", most: number, count: number): [number, string][] {
  const units: [number, string][] = unit === "ns" ? TIMES : BYTES.map((name, power): [number, string] => [1024 ** power, name]).reverse();
  const [size, name] = units.find(([least]) => most >= least) ?? [1, unit === "ns" ? "ns" : "B"];
  const step = roundUp(most / size / count);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const found: [number, string][] = [];
  for (let n = 0; n * step * size <= most; n += 1) found.push([n * step * size, n ? `${(n * step).toFixed(digits)}${name}` : "0"]);
  return found;
}

/** The next number with one digit that is 1, 2 or 5. */
export function roundUp(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least || 1));
  return power * ([1, 2, 5].find((each) => each * power >= least) ?? 10);
}

function scaled(value: number, base: number, units: string[]): string {
  let power = 0;
  while (power < units.length - 1 && Math.abs(value) >= base ** (power + 1)) power += 1;
  return `${(value / base ** power).toFixed(2)}${units[power]}`;
}

const FORMATS: Record<Unit, (value: number) => string> = {
  ns: (value) => time(value),
  bytes: (value) => scaled(value, 1024, BYTES),
  count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 }),
  share: (value) => percent(value, 1),
  flops: (value) => scaled(value, 1000, POWERS),
  number: (value) => value.toFixed(2),
  text: String,
};

/** A value of a column; a time in the unit that suits `most`, by default its own. */
export function written(column: Column, value: Value | undefined, most?: number): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (value === 0 && !column.zeros) return "";
  return column.unit === "ns" ? time(value, most) : FORMATS[column.unit](value);
}

/** The largest value of a column, whose unit all have. */
export function mostOf(column: Column): number {
  return column.values.reduce<number>((most, value) => Math.max(most, typeof value === "number" ? Math.abs(value) : 0), 0);
}

export function inUnit(unit: Unit, value: number): string {
  return FORMATS[unit](value);
}

export function percent(part: number, whole: number): string {
  return whole ? `${((100 * part) / whole).toFixed(1)} %` : "";
}
