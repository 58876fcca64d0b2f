// Numbers for people, written as Python writes them (units.py).

const TIMES: [number, string][] = [
  [1e9, "sec"],
  [1e6, "ms"],
  [1e3, "us"],
];
const BYTES = ["B", "KB", "MB", "GB", "TB", "PB"];
const POWERS = ["", "k", "M", "G", "T", "P", "E"];

export function time(ns: number): string {
  const [size, unit] = TIMES.find(([least]) => Math.abs(ns) >= least) ?? [1, "ns"];
  return `${(ns / size).toFixed(2)}${unit}`;
}

export function bytes(count: number): string {
  let power = 0;
  while (power < BYTES.length - 1 && Math.abs(count) >= 1024 ** (power + 1)) power += 1;
  return `${(count / 1024 ** power).toFixed(2)}${BYTES[power]}`;
}

export function count(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
}

export function flops(value: number): string {
  let power = 0;
  while (power < POWERS.length - 1 && value >= 1000 ** (power + 1)) power += 1;
  return `${(value / 1000 ** power).toFixed(2)} ${POWERS[power]}FLOP`;
}

export function percent(part: number, whole: number): string {
  return whole ? `${((100 * part) / whole).toFixed(1)} %` : "";
}
