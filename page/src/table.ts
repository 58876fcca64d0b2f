// A table that sorts and filters, and shows as many rows as one asks for.
import { nameOf, rowsOf, type Column, type TableData, type Value } from "./data";
import { make } from "./dom";
import { written } from "./numbers";

const AT_FIRST = 100;
const MORE = 500;

export class Table {
  /** The column that is sorted by; null: as Python has put them, -1: by name. */
  private sorted: number | null = null;
  private isDescending = true;
  private wanted = "";
  private shown = AT_FIRST;
  private readonly columns: Column[];

  constructor(
    private readonly place: HTMLElement,
    private readonly data: TableData,
    private readonly choose?: (row: number) => void,
  ) {
    this.columns = data.columns.filter((column) => !column.detail);
    this.draw();
  }

  /** Leave rows that have the text in their name, or in a column of texts. */
  filter(text: string): void {
    this.wanted = text.trim().toLowerCase();
    this.shown = AT_FIRST;
    this.draw();
  }

  private draw(): void {
    const rows = rowsOf(this.data).filter((row) => this.isWanted(row));
    if (this.sorted !== null) rows.sort((one, other) => this.compare(one, other));
    const headings = [this.heading(-1, this.data.corner, true)];
    headings.push(...this.columns.map((column, index) => this.heading(index, column.title, column.unit === "text")));
    const caption = `${rows.length} of ${this.data.labels.length} rows`;
    const table = make(
      "table",
      { class: "rows" },
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...headings)),
      make("tbody", {}, ...rows.slice(0, this.shown).map((row) => this.line(row))),
    );
    this.place.replaceChildren(make("div", { class: "scroll", tabindex: "0" }, table), ...this.rest(rows.length));
  }

  private isWanted(row: number): boolean {
    const texts = this.data.columns.filter((column) => column.unit === "text").map((column) => String(column.values[row] ?? ""));
    return [nameOf(this.data, row), this.data.labels[row] ?? "", ...texts].some((text) => text.toLowerCase().includes(this.wanted));
  }

  /** A name as it is read out of a tree. */
  private textOf(row: number): string {
    return this.data.depths.length > 0 ? nameOf(this.data, row) : (this.data.labels[row] ?? "");
  }

  private valueOf(row: number): Value {
    const column = this.columns[this.sorted ?? -1];
    return column ? (column.values[row] ?? null) : this.textOf(row);
  }

  private compare(one: number, other: number): number {
    const [left, right] = [this.valueOf(one), this.valueOf(other)];
    const isText = typeof left === "string" || typeof right === "string";
    const order = isText
      ? String(left ?? "").localeCompare(String(right ?? ""), "en", { numeric: true })
      : (left ?? -Infinity) - (right ?? -Infinity) || 0;
    return this.isDescending ? -order : order;
  }

  private heading(index: number, title: string, isText: boolean): HTMLElement {
    const isSorted = index === this.sorted;
    const direction = this.isDescending ? "descending" : "ascending";
    const sort = (): void => {
      // Names from A on, numbers from the largest on.
      this.isDescending = isSorted ? !this.isDescending : !isText;
      this.sorted = index;
      this.draw();
      this.place.querySelector<HTMLElement>(`[data-column="${index}"]`)?.focus();
    };
    const button = make("button", { type: "button", "data-column": String(index), click: sort }, title || "verdict");
    return make("th", { scope: "col", "aria-sort": isSorted ? direction : "none", class: isText ? "text" : "" }, button);
  }

  private line(row: number): HTMLElement {
    // Sorted, a tree is none: full names then.
    const isTree = this.sorted === null && this.wanted === "" && this.data.depths.length > 0;
    const name = breakable(isTree ? (this.data.labels[row] ?? "") : this.textOf(row));
    const label = this.choose
      ? [make("button", { type: "button", class: "name", click: () => this.choose?.(row) }, ...name)]
      : name;
    const head = make("th", { scope: "row", title: nameOf(this.data, row) }, ...label);
    if (isTree) head.style.paddingLeft = `${0.7 + 1.1 * (this.data.depths[row] ?? 0)}rem`;
    const cells = this.columns.map((column) =>
      make("td", { class: column.unit === "text" ? "text" : "" }, written(column, column.values[row])),
    );
    return make("tr", { class: this.data.tones[row] ?? "" }, head, ...cells);
  }

  private rest(count: number): Node[] {
    const hidden = count - this.shown;
    if (hidden <= 0) return [];
    const more = (): void => {
      this.shown += MORE;
      this.draw();
    };
    return [make("button", { type: "button", class: "more", click: more }, `Show more (${hidden} rows are left)`)];
  }
}

/** A name of which a line may end behind each dot. */
function breakable(name: string): (Node | string)[] {
  return name.split(/\.(?=\D)/).flatMap((part, place) => (place ? [".", make("wbr"), part] : [part]));
}
