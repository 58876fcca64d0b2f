// The document in the page, as `html.py` has put it there: tables of raw numbers.

export type Value = number | string | null;
export type Unit = "ns" | "bytes" | "count" | "share" | "flops" | "number" | "text";

export interface Column {
  title: string;
  unit: Unit;
  /** As programs read it: those named "..._self_ns" and the like can be drawn. */
  name: string;
  values: Value[];
  /** Whether it is not in the table, but in what is told of a single row. */
  detail: boolean;
  zeros: boolean;
}

export interface TableData {
  name: string;
  title: string;
  corner: string;
  labels: string[];
  /** Full names, where labels are shorter. */
  names: string[];
  /** Of rows in a tree; each comes after the one around it. */
  depths: number[];
  tones: string[];
  columns: Column[];
}

export interface Page {
  tables: TableData[];
  /** Own shares from which on layers of a kind are hotter. */
  heat: number[];
}

export function readPage(text: string): Page {
  return JSON.parse(text) as Page;
}

/** Positions of the rows of a table, from its first on. */
export function rowsOf(table: TableData): number[] {
  return table.labels.map((_, row) => row);
}

export function nameOf(table: TableData, row: number): string {
  return table.names[row] || table.labels[row] || "";
}
