// A table that sorts and filters, and shows as many rows as one asks for.
import { Alike, alikeIn, linesOf } from "./alike";
import { nameOf, rowsOf, type Column, type TableData, type Value } from "./data";
import { make } from "./dom";
import { mostOf, written } from "./numbers";

/** Rows that are shown: of a tree, of which rows that are alike share one; of other tables; and by each click more. */
const [OF_TREE, AT_FIRST, MORE] = [100, 25, 500];

export class Table {
  /** The column that is sorted by; null: as Python has put them, -1: by name. */
  private sorted: number | null = null;
  private isDescending = true;
  private wanted = "";
  private shown = 0;
  private readonly columns: Column[];
  private readonly most: number[];
  private readonly alike: Alike[];

  constructor(
    private readonly place: HTMLElement,
    private readonly data: TableData,
    private readonly choose?: (row: number) => void,
  ) {
    this.columns = data.columns.filter((column) => !column.detail);
    this.most = this.columns.map(mostOf);
    this.alike = data.depths.length > 0 ? alikeIn(data) : [];
    this.filter("");
  }

  /** Leave rows that have the text in their name, or in a column of texts. */
  filter(text: string): void {
    this.wanted = text.trim().toLowerCase();
    this.shown = this.isTree ? OF_TREE : AT_FIRST;
    this.draw();
  }

  /** Whether rows stand below those around them. Sorted, a tree is none: full names then. */
  private get isTree(): boolean {
    return this.sorted === null && this.wanted === "" && this.alike.length > 0;
  }

  private draw(): void {
    const rows = rowsOf(this.data).filter((row) => this.isWanted(row));
    if (this.sorted !== null) rows.sort((one, other) => this.compare(one, other));
    const headings = [this.heading(-1, this.data.corner, true)];
    headings.push(...this.columns.map((column, index) => this.heading(index, column.title, column.unit === "text")));
    const lines = this.isTree ? linesOf(this.alike) : rows;
    const caption = this.wanted ? [make("caption", {}, `${rows.length} of ${this.data.labels.length} rows`)] : [];
    const table = make(
      "table",
      { class: "rows" },
      ...caption,
      make("thead", {}, make("tr", {}, ...headings)),
      make("tbody", {}, ...lines.slice(0, this.shown).map((line) => (line instanceof Alike ? this.together(line) : this.line(line)))),
    );
    this.place.replaceChildren(make("div", { class: "scroll", tabindex: "0" }, table), ...this.rest(lines.length));
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
    const name = breakable(this.isTree ? (this.data.labels[row] ?? "") : this.textOf(row));
    const label = this.choose
      ? [make("button", { type: "button", class: "name", click: () => this.choose?.(row) }, ...name)]
      : name;
    const head = make("th", { scope: "row", title: nameOf(this.data, row) }, ...label);
    if (this.isTree) indent(head, this.data.depths[row] ?? 0);
    return make("tr", { class: this.data.tones[row] ?? "" }, head, ...this.cells((column) => column.values[row]));
  }

  /** The line of rows that are alike, which shows them, or hides them again. */
  private together(alike: Alike): HTMLElement {
    const toggle = (): void => {
      alike.isOpen = !alike.isOpen;
      this.draw();
      this.place.querySelector<HTMLElement>(`[data-alike="${alike.rows[0]}"]`)?.focus();
    };
    const attributes = { type: "button", class: "name alike", "aria-expanded": String(alike.isOpen), "data-alike": String(alike.rows[0]) };
    const head = make("th", { scope: "row" }, make("button", { ...attributes, click: toggle }, `${alike.rows.length - 1} more ${alike.label}`));
    indent(head, alike.depth);
    return make("tr", {}, head, ...this.cells((column) => alike.sum(column)));
  }

  private cells(value: (column: Column) => Value | undefined): HTMLElement[] {
    const textOf = (column: Column, index: number): string => written(column, value(column), this.most[index]);
    return this.columns.map((column, index) => make("td", { class: column.unit === "text" ? "text" : "" }, textOf(column, index)));
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

function indent(head: HTMLElement, depth: number): void {
  head.style.paddingLeft = `${0.7 + 1.1 * depth}rem`;
}

/** A name of which a line may end behind each dot. */
function breakable(name: string): (Node | string)[] {
  return name.split(/\.(?=\D)/).flatMap((part, place) => (place ? [".", make("wbr"), part] : [part]));
}
