// A table that sorts and filters, and shows as many rows as one asks for.
import { make } from "./dom";

export interface Column<Row> {
  title: string;
  /** What is sorted by. */
  value: (row: Row) => number | string;
  /** What is shown; empty where there is nothing. */
  text: (row: Row) => string;
  /** A share of the cell that is filled, from 0 to 1. */
  bar?: (row: Row) => number;
  className?: (row: Row) => string;
}

const AT_FIRST = 100;
const MORE = 500;

export class Table<Row> {
  private sorted: Column<Row>;
  private isDescending = true;
  private wanted = "";
  private shown = AT_FIRST;

  constructor(
    private readonly place: HTMLElement,
    private readonly caption: string,
    private readonly columns: Column<Row>[],
    private readonly rows: Row[],
    first: Column<Row> | undefined,
    private readonly choose: (row: Row) => void,
  ) {
    this.sorted = first ?? (columns[0] as Column<Row>);
    this.draw();
  }

  /** Leave what has the text in one of its first columns, those that hold no numbers. */
  filter(text: string): void {
    this.wanted = text.trim().toLowerCase();
    this.shown = AT_FIRST;
    this.draw();
  }

  private draw(): void {
    const rows = this.rows.filter((row) => this.isWanted(row)).sort((one, other) => this.compare(one, other));
    const table = make(
      "table",
      { class: "rows" },
      make("caption", {}, `${this.caption}: ${rows.length} of ${this.rows.length} rows`),
      make("thead", {}, make("tr", {}, ...this.columns.map((column) => this.heading(column)))),
      make("tbody", {}, ...rows.slice(0, this.shown).map((row) => this.line(row))),
    );
    this.place.replaceChildren(table, ...this.rest(rows.length));
  }

  private isWanted(row: Row): boolean {
    const texts = this.columns.map((column) => column.value(row)).filter((value) => typeof value === "string");
    return texts.some((text) => text.toLowerCase().includes(this.wanted));
  }

  private compare(one: Row, other: Row): number {
    const [left, right] = [this.sorted.value(one), this.sorted.value(other)];
    const order = typeof left === "string" ? left.localeCompare(String(right), "en", { numeric: true }) : left - Number(right);
    return this.isDescending ? -order : order;
  }

  private heading(column: Column<Row>): HTMLElement {
    const isSorted = column === this.sorted;
    const direction = this.isDescending ? "descending" : "ascending";
    const sort = (): void => {
      // Names from A on, numbers from the largest on.
      this.isDescending = isSorted ? !this.isDescending : !this.isText(column);
      this.sorted = column;
      this.draw();
      this.place.querySelector<HTMLElement>(`[data-column="${this.columns.indexOf(column)}"]`)?.focus();
    };
    const number = String(this.columns.indexOf(column));
    const button = make("button", { type: "button", "data-column": number, click: sort }, column.title);
    return make("th", { scope: "col", "aria-sort": isSorted ? direction : "none", class: this.isText(column) ? "text" : "" }, button);
  }

  private isText(column: Column<Row>): boolean {
    const [row] = this.rows;
    return row !== undefined && typeof column.value(row) === "string";
  }

  private line(row: Row): HTMLElement {
    const cells = this.columns.map((column, index) => {
      const text = column.text(row);
      const className = [this.isText(column) ? "text" : "", column.className?.(row) ?? ""].join(" ").trim();
      const cell = make(index ? "td" : "th", { class: className, ...(index ? {} : { scope: "row" }) });
      cell.append(index ? text : make("button", { type: "button", class: "name", click: () => this.choose(row) }, text));
      if (column.bar) {
        cell.classList.add("bar");
        cell.style.setProperty("--share", String(column.bar(row)));
      }
      return cell;
    });
    return make("tr", {}, ...cells);
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
