// The numbers in the page, as `page_data.py` has put them there.

/** What calls of one kind took in one phase; see `Totals` in Python. */
export interface Totals {
  phase: string;
  calls: number;
  own: number;
  cumulative: number;
  mean: number;
  std: number;
  least: number;
  most: number;
  flops: number;
  flopsCumulative: number;
  deviceOwn: number;
  deviceCumulative: number;
  retainedOwn: number;
  retainedCumulative: number;
  usedCumulative: number;
  peak: number;
}

/** A row of a table, or a place in the tree. */
export interface Item {
  name: string;
  className: string;
  kind: string;
  /** What layers of one kind have in common. */
  like: string;
  /** By the phases in which anything was booked. */
  totals: Totals[];
  /** Forward calls, as `Row.calls` counts them. */
  calls: number;
  marks: string;
}

export interface TreeItem extends Item {
  parent: number;
}

/** One line of a comparison; times in nanoseconds. */
export interface Change {
  name: string;
  phase: string;
  before: number;
  after: number;
  /** Not a finite number if nothing is known of it. */
  noise: number;
  /** 1: slower, -1: faster, 0: neither, by more than noise. */
  verdict: number;
  calls: string;
}

export interface PageData {
  trees: Record<string, TreeItem[]>;
  rows: Record<string, Item[]>;
  changes: Change[] | null;
  /** Those of modules, whatever is in the table. */
  moduleChanges: Map<string, Change[]>;
  /** Names that only the new one of two profiles has. */
  added: Set<string>;
}

type Packed = [name: number, className: number, kind: number, like: number, record: number, calls: number, marks: number, parent: number];

type PackedChange = [name: number, phase: number, before: number, after: number, noise: number | null, verdict: number, calls: string];

interface Raw {
  texts: string[];
  records: number[][][];
  trees: Record<string, Packed[]>;
  rows: Record<string, Packed[]>;
  changes?: PackedChange[];
  moduleChanges?: PackedChange[];
  added?: number[];
}

/** In the order in which Python writes them, without zeros at the end. */
function totals(numbers: number[], texts: string[]): Totals {
  const at = (index: number): number => numbers[index] ?? 0;
  return {
    phase: texts[at(0)] ?? "",
    calls: at(1),
    own: at(2),
    cumulative: at(3),
    mean: at(4),
    std: at(5),
    least: at(6),
    most: at(7),
    flops: at(8),
    flopsCumulative: at(9),
    deviceOwn: at(10),
    deviceCumulative: at(11),
    retainedOwn: at(12),
    retainedCumulative: at(13),
    usedCumulative: at(14),
    peak: at(15),
  };
}

export function readData(text: string): PageData {
  const raw = JSON.parse(text) as Raw;
  const word = (index: number): string => raw.texts[index] ?? "";
  const records = raw.records.map((record) => record.map((phase) => totals(phase, raw.texts)));
  const item = (packed: Packed): TreeItem => ({
    name: word(packed[0]),
    className: word(packed[1]),
    kind: word(packed[2]),
    like: word(packed[3]),
    totals: records[packed[4]] ?? [],
    calls: packed[5],
    marks: word(packed[6]),
    parent: packed[7] ?? -1,
  });
  const all = (packed: Record<string, Packed[]>): Record<string, TreeItem[]> =>
    Object.fromEntries(Object.entries(packed).map(([key, items]) => [key, items.map(item)]));
  const unpacked = (changes: PackedChange[]): Change[] =>
    changes.map(([name, phase, before, after, noise, verdict, calls]) => ({
      name: word(name),
      phase: word(phase),
      before,
      after,
      noise: noise ?? Infinity,
      verdict,
      calls,
    }));
  const moduleChanges = new Map<string, Change[]>();
  for (const change of unpacked(raw.moduleChanges ?? raw.changes ?? [])) {
    moduleChanges.set(change.name, [...(moduleChanges.get(change.name) ?? []), change]);
  }
  return {
    trees: all(raw.trees),
    rows: all(raw.rows),
    changes: raw.changes ? unpacked(raw.changes) : null,
    moduleChanges,
    added: new Set((raw.added ?? []).map(word)),
  };
}
