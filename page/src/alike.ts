// Rows of a tree that differ in a number only: "h.0: Block", "h.1: Block". One is shown, the others together in a line.
import { rowsOf, type Column, type TableData } from "./data";

const NUMBER = /(^|\.)\d+(?=[.:]|$)/g;
/** Fewer rows are all shown. */
const FEWEST = 3;
/** Names of columns that are no sums: of means, spreads, extremes and rates. */
const NO_SUM = /_(mean|std|min|max|peak)_|^peak_|FLOP\/s|per_s$/;

export class Alike {
  readonly rows: number[] = [];
  /** Whether the others are shown, too. */
  isOpen = false;

  constructor(
    readonly label: string,
    readonly depth: number,
  ) {}

  /** What the others have in a column together; null where that makes no sense. */
  sum({ unit, name, values }: Column): number | null {
    if (unit === "text" || (unit === "share" && !name.endsWith("share")) || NO_SUM.test(name)) return null;
    return this.rows.slice(1).reduce((sum, row) => sum + Number(values[row] ?? 0), 0);
  }
}

/** For each row of a tree, those that are alike: with the same row around them, of one colour, and with the same note. */
export function alikeIn(table: TableData): Alike[] {
  const notes = table.columns.find(({ name }) => name === "flags")?.values;
  const found = new Map<string, Alike>();
  const around: number[] = []; // by depth
  return rowsOf(table).map((row) => {
    const depth = table.depths[row] ?? 0;
    const label = (table.labels[row] ?? "").replace(NUMBER, "$1*");
    const key = [around[depth - 1], label, table.tones[row], notes?.[row]].join("\n");
    around[depth] = row;
    const alike = found.get(key) ?? new Alike(label, depth);
    found.set(key, alike);
    alike.rows.push(row);
    return alike;
  });
}

/** The rows that are shown, and between them, in front of the others, what stands for these. */
export function linesOf(alike: Alike[]): (number | Alike)[] {
  const lines: (number | Alike)[] = [];
  let hidden = Infinity; // the depth of the row around, if that is not shown
  alike.forEach((all, row) => {
    if (all.depth > hidden) return;
    hidden = Infinity;
    const isOther = all.rows.length >= FEWEST && row !== all.rows[0];
    if (isOther && row === all.rows[1]) lines.push(all);
    if (isOther && !all.isOpen) hidden = all.depth;
    else lines.push(row);
  });
  return lines;
}
