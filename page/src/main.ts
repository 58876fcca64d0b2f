// Puts tables that sort and filter, and pictures of trees, where Python has left room.
import { Areas } from "./areas";
import { readPage, type Page, type TableData } from "./data";
import { choice, find, make } from "./dom";
import { Picture } from "./picture";
import { Steps } from "./steps";
import { Table } from "./table";

/** Tables with fewer rows need no filter. */
const MANY = 8;

/** The tables in a place, of which one is shown at a time. */
function addTables(place: HTMLElement, tables: TableData[], page: Page): void {
  const bar = make("div", { class: "controls" });
  const filter = make("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter the table" });
  const [above, body] = [make("div"), make("div")];
  let shown: Table;
  const draw = (name: string): void => {
    const table = tables.find((each) => each.name === name);
    if (!table) return;
    above.replaceChildren();
    const picture = place.dataset.drawing === "tree" ? new Picture(above, table, page.heat) : null;
    if (place.dataset.drawing === "areas") new Areas(above, table);
    if (place.dataset.drawing === "steps") new Steps(above, table);
    shown = new Table(body, table, picture ? (row) => picture.goTo(row) : undefined);
    if (filter.value) shown.filter(filter.value);
  };
  filter.addEventListener("input", () => shown.filter(filter.value));
  const options = tables.map(({ name, title }) => ({ id: name, title }));
  if (options.length > 1) bar.append(choice("What is shown", options, options[0]?.id ?? "", draw));
  const below = make("div", { class: "controls" });
  if (tables.some((table) => table.labels.length > MANY)) below.append(filter);
  const folded = place.querySelector("details");
  folded?.lastElementChild?.replaceWith(below, body);
  place.replaceChildren(bar, above, ...(folded ? [folded] : [below, body]));
  draw(options[0]?.id ?? "");
}

/** Light or dark by a button; at first as the system has it. */
function addThemeButton(): void {
  const toggle = (): void => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  };
  find("header")?.append(make("button", { type: "button", class: "theme", click: toggle }, "Light or dark"));
}

function start(): void {
  const page = readPage(find("#data")?.textContent ?? '{"tables":[],"heat":[]}');
  for (const place of document.querySelectorAll<HTMLElement>("[data-tables]")) {
    const names = (place.dataset.tables ?? "").split(" ");
    addTables(place, page.tables.filter(({ name }) => names.includes(name)), page);
  }
  addThemeButton();
  document.documentElement.dataset.ready = "true";
}

start();
